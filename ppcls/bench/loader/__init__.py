"""Speed of data loaders, and what limits it."""
