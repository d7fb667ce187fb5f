"""Costs that grow with the data: CPU seconds and memory of one process, by number of images or records."""
