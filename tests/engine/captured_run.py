"""linear_run.py with recorded steps; a CPU does the recorded work again instead of replaying it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import linear_run  # noqa: F401 - registers its model

from ppcls.engine import train
from ppcls.engine.captured import CapturedStep


class Again:
    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


if __name__ == "__main__":
    train.choose_step = lambda config, state: (CapturedStep(state, Again), "steps: recorded")
    from ppcls.cli import train as main

    sys.exit(main())
