"""Evaluation and its outcomes per sample."""
