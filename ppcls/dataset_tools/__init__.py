"""Checks, resizes, converts and describes datasets, and creates demo datasets."""
