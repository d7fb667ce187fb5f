"""A run's scalars for VisualDL."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from ppcls.report.record import EvalRecord, StepRecord


def scalars(record: StepRecord | EvalRecord) -> dict[str, float]:
    """Returns tag to value, such as ``train/loss``; what is not finite is left out."""
    if isinstance(record, StepRecord):
        section = "train"
        values = {
            "loss": record.loss,
            **record.metrics,
            "lr": record.learning_rate,
            "images_per_second": record.images_per_second,
            "data_wait": record.data_wait,
        }
    else:
        section = "eval"
        values = {"loss": record.loss, **record.metrics}
    return {f"{section}/{name}": value for name, value in values.items() if math.isfinite(value)}


class VisualDL:
    """Writes scalars over optimizer updates into a new file in ``folder``.

    VisualDL shows the newest file of a folder only, so a run that goes on hands its earlier records
    in again.

    Args:
        folder: Where VisualDL looks (``visualdl --logdir``); made where it is missing.
        earlier: Records of the run before it was resumed.
    """

    def __init__(self, folder: Path, earlier: Iterable[StepRecord | EvalRecord] = ()) -> None:
        # Imported here: it takes long, and brings a web server and pandas along.
        from visualdl import LogWriter

        self._writer = LogWriter(logdir=str(folder))
        for record in earlier:
            self._write(record)

    def message(self, text: str) -> None:
        """Does nothing: a message is no scalar."""

    def train(self, record: StepRecord) -> None:
        """Writes the scalars ``train/…``."""
        self._write(record)

    def evaluation(self, record: EvalRecord) -> None:
        """Writes the scalars ``eval/…``."""
        self._write(record)

    def close(self) -> None:
        """Writes what is pending and closes the file."""
        self._writer.close()

    def _write(self, record: StepRecord | EvalRecord) -> None:
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag=tag, value=value, step=record.update)
