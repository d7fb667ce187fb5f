"""Bundles: an exported model with its preprocessing, golden samples and programs that run and verify it."""
