"""Describes the data pipelines of a run as they are built: a table and a picture."""
