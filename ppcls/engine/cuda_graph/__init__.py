"""The training step as a CUDA graph."""
