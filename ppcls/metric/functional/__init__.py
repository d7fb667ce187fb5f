"""Formulas of metrics, on tensors and arrays."""
