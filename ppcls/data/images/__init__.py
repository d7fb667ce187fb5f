"""Image files: paths, headers, decoding and .npy files."""
