"""Runs linear_run.py with captured steps on a CPU, which repeats the captured work instead of a replay."""

from __future__ import annotations

import sys
from collections.abc import Callable

import linear_run  # noqa: F401 - registers its model
from omitted_pictures import omit_curves, omit_heat_maps

from ppcls.engine import execution
from ppcls.engine.cuda_graph.graphed_step import GraphedStep


class Again:
    replays = 0

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        Again.replays += 1
        self._work()


if __name__ == "__main__":
    execution.choose_step = lambda state, *_: (GraphedStep(state, Again), "steps: recorded")
    from ppcls.cli.train import train as main

    omit_curves()
    omit_heat_maps()
    code = main()
    sys.stdout.write(f"replays: {Again.replays}\n")
    sys.exit(code)
