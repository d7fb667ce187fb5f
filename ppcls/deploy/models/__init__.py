"""Models for inference: where they come from, how they are described, what runs them."""
