"""Writes reports of a training run: console, log files, curves, HTML page, VisualDL and other trackers."""
