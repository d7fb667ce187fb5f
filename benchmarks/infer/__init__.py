"""Latency and images/s of a model."""
