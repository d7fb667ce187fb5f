"""Finds, lists and skips bad images, which can't be read or decoded."""
