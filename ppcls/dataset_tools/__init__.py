"""Tools for data sets: check, split, resize, convert, statistics, demo data."""
