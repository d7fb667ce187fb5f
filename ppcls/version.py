"""The version of ppcls."""

__version__ = "0.1.0"
