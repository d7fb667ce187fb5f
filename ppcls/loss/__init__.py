"""Losses: each is one class with its keys, its rules and ``build``. Derive your own from `Loss`.

This package can be imported before Paddle, and imports it only when a loss is built.
"""

from __future__ import annotations

from ppcls.loss.base import ClassCounts, ClassStatistics, Loss

__all__ = ["ClassCounts", "ClassStatistics", "Loss"]
