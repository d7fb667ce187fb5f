"""Benchmarks, and the data that they need."""
