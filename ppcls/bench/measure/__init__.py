"""Worker processes, turns and system load, for all benchmarks."""
