"""Whole training runs, with start-up, evaluation and checkpoints."""
