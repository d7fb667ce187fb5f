"""Trains the same network on the same data with ppcls and with PyTorch, and compares the accuracy."""
