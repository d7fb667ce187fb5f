"""Measures times and memory of a run."""
