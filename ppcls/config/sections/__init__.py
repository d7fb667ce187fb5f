"""Sections of the config, with one module per subject."""
