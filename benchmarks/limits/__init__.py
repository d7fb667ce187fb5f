"""Finds what limits a training run: the device, the cores, or the thread that launches the steps."""
