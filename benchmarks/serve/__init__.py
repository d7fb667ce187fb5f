"""Latency and images/s of HTTP servers."""
