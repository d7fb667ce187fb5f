"""Optimizers, their state, and learning-rate schedules."""
