"""Summarizes the results of a run in a few sentences."""
