"""Charts of results, and the comparison of two results."""
