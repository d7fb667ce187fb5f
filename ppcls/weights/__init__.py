"""Reads, writes, downloads and verifies files of weights."""
