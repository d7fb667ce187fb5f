"""Implements losses."""
