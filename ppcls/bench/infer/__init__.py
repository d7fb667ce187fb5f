"""Speed of inference."""
