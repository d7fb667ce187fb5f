"""Evaluates models, and collects results per sample."""
