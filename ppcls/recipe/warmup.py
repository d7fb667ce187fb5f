"""Shortens the warm-up of a config that the user did not choose, so that it fits the length of the run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ppcls.config.base.tree import Tree, node_at

WARMUP = "Optimizer.lr.warmup_epoch"


def fit_warmup(tree: Tree, typed: Collection[str], epochs: Any = None) -> dict[str, float]:
    """Returns the override that shortens the warm-up to half of a run that is not longer; empty without one.

    `Schedule.warmup_within` shortens it to the same length, but warns, because a config of the user asked for
    more.

    Args:
        tree: Config, which may be invalid.
        typed: Keys that the user set. Their values are not changed.
        epochs: Number of epochs of the run; by default that of the config.
    """
    warmup = node_at(tree, WARMUP)
    epochs = node_at(tree, "Global.epochs") if epochs is None else epochs
    if any(key == WARMUP or WARMUP.startswith(f"{key}.") for key in typed):
        return {}
    if not _is_number(warmup) or not _is_number(epochs) or not 0 < epochs <= warmup:
        return {}
    return {WARMUP: epochs / 2}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
