"""ppcls beside PyTorch and the loop of Paddle's documentation."""
