"""The result schema of all benchmarks, and how results are shown."""
