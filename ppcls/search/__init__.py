"""Commands that train a config several times: to find a batch size, for cross-validation, or to tune keys."""
