"""Config sections, one subject per file."""
