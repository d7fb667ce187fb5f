"""What a process that measures training is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """What to measure, and for how long.

    Attributes:
        config: YAML file.
        overrides: Of the config.
        source: ``synthetic``, ``loader``, or ``bare`` for Paddle's own loop on synthetic data.
        warm_up: Steps that are not counted. A step is an optimizer update.
        settle: Seconds of steps that are not counted either, so that the device's clock is that of long work.
        steps: Counted; None for as many as ``seconds`` take.
        seconds: To measure for.
        split_steps: Steps, after these, in which each phase is timed.
    """

    config: str
    overrides: tuple[str, ...]
    source: str
    warm_up: int = 5
    settle: float = 0.0
    steps: int | None = None
    seconds: float = 5.0
    split_steps: int = 4

    @staticmethod
    def read(tree: dict[str, Any]) -> Task:
        """Returns the task that JSON gave."""
        return Task(**{**tree, "overrides": tuple(tree["overrides"])})
