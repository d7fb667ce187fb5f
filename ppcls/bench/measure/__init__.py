"""The benchmark runner, measuring processes, and resource usage."""
