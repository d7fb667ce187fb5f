"""Optimizers, learning rates and their state."""
