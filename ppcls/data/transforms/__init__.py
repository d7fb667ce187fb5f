"""Image transforms: the specs say what they do; NumPy and DALI implement them."""
