"""Describes the data pipelines of a run."""
