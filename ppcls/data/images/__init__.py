"""Finds and decodes image files: paths, headers, pixels and ``.npy`` arrays."""
