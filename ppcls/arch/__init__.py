"""Models: architectures, their cost, and networks that combine several models."""
