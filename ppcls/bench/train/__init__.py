"""Benchmark of training steps, and the choice of the fastest way to execute them."""
