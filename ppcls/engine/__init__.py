"""The training run: setup, training step, loop, evaluation and checkpoints."""
