"""Benchmark of inference."""
