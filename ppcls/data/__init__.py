"""Reads datasets, and loads and transforms their images."""
