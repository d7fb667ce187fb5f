"""What the data pipelines of a run are, as they were really built: a table and a picture."""
