"""A run's scalars, images, histograms and PR curves for VisualDL."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.report.budget import Budget
from ppcls.report.record import EvalRecord, Histogram, StepRecord
from ppcls.report.thumbnail import NoPictures, Pictures, small

_IMAGES = 8


def _now() -> int:
    return round(time.time() * 1000)  # milliseconds, as VisualDL counts


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


def pr_curve(confidences: NDArray[np.int64]) -> dict[str, list[float]]:
    """Returns VisualDL's numbers of how well a prediction's confidence tells whether it is right.

    At each threshold the predictions of at least its confidence count as claimed to be right.

    Args:
        confidences: See `Outcomes.confidences`.

    Returns:
        ``tp``, ``fp``, ``tn``, ``fn``, ``precision`` and ``recall``, each [bins].
    """
    fp, tp = confidences[:, ::-1].cumsum(axis=1)[:, ::-1]
    tn, fn = fp[0] - fp, tp[0] - tp
    rates = {"precision": tp / np.maximum(1, tp + fp), "recall": tp / np.maximum(1, tp[0])}
    counts = {"tp": tp, "fp": fp, "tn": tn, "fn": fn}
    return {name: each.tolist() for name, each in {**counts, **rates}.items()}


class VisualDL:
    """Writes scalars over optimizer updates into a new file in ``folder``.

    At each epoch's end come training images as the model saw them and histograms of the weights, unless
    its `Budget` is spent; at each evaluation a PR curve of the confidence.

    VisualDL shows the newest file of a folder only, so a run that goes on hands its earlier records
    in again.

    Args:
        folder: Where VisualDL looks (``visualdl --logdir``); made where it is missing.
        earlier: Records of the run before it was resumed.
        pictures: Gives the training images.
        weights: Gives histograms of the weights, by name.
    """

    def __init__(
        self,
        folder: Path,
        earlier: Iterable[StepRecord | EvalRecord] = (),
        pictures: Pictures | None = None,
        weights: Callable[[], Mapping[str, Histogram]] = dict,
    ) -> None:
        # Imported here: it takes long, and brings a web server and pandas along.
        from visualdl import LogWriter

        self._writer = LogWriter(logdir=str(folder))
        self._pictures, self._weights, self._budget = pictures or NoPictures(), weights, Budget()
        for record in earlier:
            self._write(record)

    def message(self, text: str) -> None:
        """Does nothing: a message is no scalar."""

    def train(self, record: StepRecord) -> None:
        """Writes the scalars ``train/…``; images and histograms at an epoch's end."""
        self._write(record)
        if record.step == record.steps_per_epoch and self._budget.left:
            with self._budget.spending():
                self._write_images(record.epoch)
                self._write_weights(record.epoch)

    def evaluation(self, record: EvalRecord) -> None:
        """Writes the scalars ``eval/…`` and the PR curve."""
        self._write(record)
        if record.outcomes is not None:
            from visualdl.component.base_component import pr_curve_raw

            numbers = pr_curve(record.outcomes.confidences)
            self._add(pr_curve_raw("eval/confidence", step=record.epoch, walltime=_now(), **numbers))

    def close(self) -> None:
        """Writes what is pending and closes the file."""
        self._writer.close()

    def _write_images(self, epoch: int) -> None:
        for place, picture in enumerate(self._pictures.augmented()[:_IMAGES]):
            pixels = np.asarray(small(picture.pixels).convert("RGB"))
            self._writer.add_image(tag=f"augmented/{place}", img=pixels, step=epoch)

    def _write_weights(self, epoch: int) -> None:
        from visualdl.component.base_component import histogram

        for name, each in self._weights().items():
            counts, edges = each.counts.tolist(), each.edges.tolist()
            self._add(histogram(f"weights/{name}", counts, edges, step=epoch, walltime=_now()))

    def _add(self, record: Any) -> None:
        # VisualDL's own methods take all the numbers, and that of PR curves fails with numpy from 1.24 on.
        self._writer._get_file_writer().add_record(record)

    def _write(self, record: StepRecord | EvalRecord) -> None:
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag=tag, value=value, step=record.update)
