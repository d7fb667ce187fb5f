"""Reports of a training run: console, log files, curves, HTML page and VisualDL."""
