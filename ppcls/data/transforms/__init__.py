"""Transforms of images: what they do (specs), and how NumPy and DALI do it."""
