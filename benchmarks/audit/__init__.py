"""Measures `ppcls dataset audit` on data sets with planted faults."""
