"""Data loaders that implement one protocol."""
