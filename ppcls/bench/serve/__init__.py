"""Benchmark of HTTP servers under load."""
