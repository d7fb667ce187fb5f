"""Tools for datasets: check, resize, convert, statistics, demo data."""
