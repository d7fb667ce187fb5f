"""Monitors a run: non-finite losses and gradients, and requests to save or stop."""
