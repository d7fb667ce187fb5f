"""The samples of a dataset and their labels."""
