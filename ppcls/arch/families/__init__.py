"""Architectures, one family per file."""
