"""Implements metrics."""
