"""Writes, indexes and reads record files, each of which contains many images."""
