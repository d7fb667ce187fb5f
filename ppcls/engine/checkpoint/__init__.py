"""Functions and classes that save, find and resume checkpoints."""
