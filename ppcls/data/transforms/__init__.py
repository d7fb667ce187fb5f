"""Transforms images: specs define each transform, and NumPy and DALI implement it."""
