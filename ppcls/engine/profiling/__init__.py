"""Timing and memory of a run."""
