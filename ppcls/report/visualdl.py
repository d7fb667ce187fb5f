"""Writes scalars, images, histograms and precision-recall curves of a run for VisualDL."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.report.record import Histogram, Outcomes, Record, Reporter, StepRecord, TimeBudget
from ppcls.report.thumbnail import PictureSource, thumbnail

_MAX_IMAGES = 8


def scalars(record: Record) -> dict[str, float]:
    """Returns the finite values of a record, keyed by tag, such as ``train/loss``."""
    section = "eval"
    values = {"loss": record.loss, **record.metrics}
    if isinstance(record, StepRecord):
        section = "train"
        values |= {
            "lr": record.learning_rate,
            "images_per_second": record.images_per_second,
            "data_wait": record.data_wait,
        }
    return {f"{section}/{name}": value for name, value in values.items() if math.isfinite(value)}


def pr_curve(confidences: NDArray[np.int64]) -> dict[str, list[float]]:
    """Returns the precision-recall curve of detecting correct predictions by a threshold on the confidence.

    Args:
        confidences: See `Outcomes.confidences`.

    Returns:
        Lists of length [bins] for VisualDL: ``tp``, ``fp``, ``tn``, ``fn``, ``precision`` and ``recall``.
    """
    fp, tp = confidences[:, ::-1].cumsum(axis=1)[:, ::-1]
    tn = fp[0] - fp
    fn = tp[0] - tp
    rates = {"precision": tp / np.maximum(1, tp + fp), "recall": tp / np.maximum(1, tp[0])}
    counts = {"tp": tp, "fp": fp, "tn": tn, "fn": fn}
    return {name: values.tolist() for name, values in {**counts, **rates}.items()}


class VisualDLWriter(Reporter):
    """Writes scalars to a new file in a folder, with the optimizer update as their step.

    At the end of each epoch it also writes transformed training images and histograms of the weights, if the
    `TimeBudget` allows it. After each evaluation it writes a precision-recall curve of the confidence.

    VisualDL shows only the newest file of a folder, so a resumed run writes its earlier records again.

    Args:
        folder: Folder for ``visualdl --logdir``. It is created if it does not exist.
        earlier: Records of the run before it resumed.
        pictures: Source of the training images.
        weights: Function that returns histograms of the weights, keyed by name.
    """

    def __init__(
        self,
        folder: Path,
        earlier: Iterable[Record] = (),
        pictures: PictureSource | None = None,
        weights: Callable[[], Mapping[str, Histogram]] = dict,
    ) -> None:
        # Imported here because the import is slow and loads a web server and pandas.
        from visualdl import LogWriter

        self._writer = LogWriter(logdir=str(folder))
        self._pictures = pictures or PictureSource()
        self._weights = weights
        self._budget = TimeBudget()
        for record in earlier:
            self._write_scalars(record)

    def record(self, record: Record) -> None:
        """Writes the scalars of a record, and images, histograms or a curve if they are due."""
        self._write_scalars(record)
        if isinstance(record, StepRecord):
            if record.step == record.steps_per_epoch and self._budget.left:
                with self._budget.spending():
                    self._write_images(record.epoch)
                    self._write_weights(record.epoch)
        elif isinstance(record.outcomes, Outcomes):
            from visualdl.component.base_component import pr_curve_raw

            curve = pr_curve(record.outcomes.confidences)
            self._add(pr_curve_raw("eval/confidence", step=record.epoch, walltime=_milliseconds(), **curve))

    def close(self) -> None:
        """Writes pending values and closes the file."""
        self._writer.close()

    def _write_images(self, epoch: int) -> None:
        for place, picture in enumerate(self._pictures.augmented()[:_MAX_IMAGES]):
            pixels = np.asarray(thumbnail(picture.pixels).convert("RGB"))
            self._writer.add_image(tag=f"augmented/{place}", img=pixels, step=epoch)

    def _write_weights(self, epoch: int) -> None:
        from visualdl.component.base_component import histogram

        for name, weight in self._weights().items():
            counts = weight.counts.tolist()
            edges = weight.edges.tolist()
            self._add(histogram(f"weights/{name}", counts, edges, step=epoch, walltime=_milliseconds()))

    def _add(self, record: Any) -> None:
        # VisualDL's public methods need all raw values. Its method for curves fails with NumPy >= 1.24. Tried
        # with VisualDL 2.5.3, its last version; tests/report/test_visualdl.py reads the records.
        self._writer._get_file_writer().add_record(record)

    def _write_scalars(self, record: Record) -> None:
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag=tag, value=value, step=record.update)


def _milliseconds() -> int:
    """Returns the current time in VisualDL's unit, milliseconds since 1970."""
    return round(time.time() * 1000)
