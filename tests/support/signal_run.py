"""Runs linear_run.py; each rank records its process id, its saves and its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import linear_run  # noqa: F401 - registers the model
from omitted_pictures import omit_curves, omit_heat_maps

from ppcls.cli.train import train

NOTES = Path(os.environ["NOTES"])
RANK = os.environ.get("PADDLE_TRAINER_ID", "0")


def note(kind: str, text: object) -> None:
    with (NOTES / f"{kind}.{RANK}").open("a") as file:
        file.write(f"{text}\n")


def note_saves() -> None:
    from ppcls.engine.checkpoint.checkpoints import Checkpoints

    whole = Checkpoints.save

    def save(
        self: Checkpoints, state: object, roles: Iterable[str], score: float | None = None, **_options: bool
    ) -> None:
        note("saved", f"{state.update} {' '.join(roles)}")  # type: ignore[attr-defined]
        whole(self, state, roles, score)  # type: ignore[arg-type]

    Checkpoints.save = save  # type: ignore[method-assign]


if __name__ == "__main__":
    note("pid", os.getpid())
    note_saves()
    omit_curves()
    omit_heat_maps()
    code = train()
    note("code", code)
    sys.exit(code)
