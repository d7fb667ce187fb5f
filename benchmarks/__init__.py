"""Measures ppcls beside other software, and whole runs: ``python benchmarks/run.py --help``."""
