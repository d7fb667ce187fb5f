"""Loads images: datasets, sampling, transforms and loaders."""
