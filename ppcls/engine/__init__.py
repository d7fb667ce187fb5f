"""The training run: its state, its loop, and what it keeps."""
