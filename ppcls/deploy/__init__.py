"""The way out: models for other programs, and predictions by any of them."""
