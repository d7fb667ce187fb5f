"""Captures the training step and the evaluation's forward pass as CUDA graphs, and replays them."""
