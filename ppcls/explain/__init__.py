"""Describes the data pipelines of a run in a table and a picture."""
