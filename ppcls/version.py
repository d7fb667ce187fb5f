"""The version of ppcls."""

__version__ = "0.2.0"
