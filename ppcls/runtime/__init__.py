"""Sets up the process, the device and the ranks of a run, and imports Paddle."""
