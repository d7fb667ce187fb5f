"""Image headers, decoding and .npy files."""
