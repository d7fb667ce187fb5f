"""Process, device and ranks: what a run finds and sets up before Paddle is imported."""
