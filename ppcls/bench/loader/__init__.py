"""Benchmark of data loaders."""
