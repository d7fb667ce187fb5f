"""``ppcls benchmark``."""

from ppcls.cli.benchmark.command import main

__all__ = ["main"]
