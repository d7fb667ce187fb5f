"""The training step and all it needs."""
