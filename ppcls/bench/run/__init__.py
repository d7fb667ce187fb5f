"""Benchmark of whole training runs."""
