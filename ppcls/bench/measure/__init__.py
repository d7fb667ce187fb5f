"""Runner, processes and resource usage of the benchmarks."""
