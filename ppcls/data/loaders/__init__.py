"""Data loaders, one protocol."""
