"""Saving, finding and resuming checkpoints."""
