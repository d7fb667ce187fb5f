"""Speed of training steps."""
