"""From files to batches: which sample, what happens to it, and who does it."""
