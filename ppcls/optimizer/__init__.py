"""Optimizers, learning-rate schedules and their state."""
