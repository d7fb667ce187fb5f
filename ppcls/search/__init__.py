"""Several runs of one config: batch sizes, folds of cross-validation, and a search for settings."""
