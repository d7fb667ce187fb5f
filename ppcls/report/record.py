"""What a run reports: records of training and of evaluation, and the base class of all reporters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_BUDGET_SHARE, _BUDGET_SECONDS = 0.01, 1.0  # of the elapsed time, and on top of it


@dataclass(frozen=True)
class StepRecord:
    """Training since the previous record.

    Attributes:
        epoch: Current epoch, counted from 1.
        epochs: Number of epochs of the whole run.
        step: Last finished step of the epoch, counted from 1.
        steps_per_epoch: Number of steps of one epoch.
        update: Number of optimizer updates since the start of the run.
        loss: Mean loss.
        metrics: Metric values by name, such as ``{"top1": 0.98}``.
        learning_rate: Learning rate of the last update.
        images_per_second: Throughput over all ranks.
        data_wait: Share of the time spent waiting for data, 0..1.
        eta_seconds: Estimated seconds until the run ends.
    """

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    update: int
    loss: float
    metrics: dict[str, float]
    learning_rate: float
    images_per_second: float
    data_wait: float
    eta_seconds: float


@dataclass(frozen=True)
class StepPosition:
    """The position of a run after an update, known without waiting for the device.

    Attributes:
        epoch: Current epoch, counted from 1.
        epochs: Number of epochs of the whole run.
        step: Last finished step of the epoch, counted from 1.
        steps_per_epoch: Number of steps of one epoch.
        images: Images of this update, over all ranks.
    """

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    images: int

    @property
    def remaining(self) -> int:
        """Number of steps until the end of the run."""
        return (self.epochs - self.epoch + 1) * self.steps_per_epoch - self.step


@dataclass(frozen=True)
class Mistake:
    """A misclassified sample of an evaluation.

    Attributes:
        position: Index of the sample in the evaluated data set.
        label: Its true class.
        predicted: The predicted class.
        loss: Cross-entropy in nats. It may be infinite or NaN.
        confidence: Probability of ``predicted``, 0..1.
    """

    position: int
    label: int
    predicted: int
    loss: float
    confidence: float


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The results of one evaluation per sample, over all ranks.

    Attributes:
        confusion: Confusion matrix [classes, classes] int64, one row per true class and one column per
            predicted class. None if there are too many classes.
        confidences: [2, bins] int64, histograms of the probability of the predicted class over equal bins
            from 0 to 1: row 0 counts wrong predictions, row 1 correct ones.
        worst: The mistakes with the highest loss, in descending order.
    """

    confusion: NDArray[np.int64] | None
    confidences: NDArray[np.int64]
    worst: tuple[Mistake, ...]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Distribution of the values of a tensor.

    Attributes:
        counts: [bins] int64.
        edges: [bins + 1] float64, ascending.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]


@dataclass(frozen=True)
class EvalRecord:
    """One evaluation.

    Attributes:
        epoch: Number of finished epochs.
        update: Number of optimizer updates since the start of the run.
        loss: Mean loss over ``images``.
        metrics: Metric values by name, such as ``{"top1": 0.98}``.
        images: Number of evaluated images, over all ranks.
        seconds: Duration of the evaluation.
        best: Whether this is the best evaluation so far.
        outcomes: Results per sample, if they were requested. Files of records do not contain them.
    """

    epoch: int
    update: int
    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float
    best: bool
    outcomes: Outcomes | None = field(default=None, compare=False, repr=False)


Record: TypeAlias = StepRecord | EvalRecord


class Reporter:
    """Receives what a run reports, in order of time. Every method does nothing until it is overridden."""

    def message(self, text: str, update: int | None = None) -> None:
        """Receives a line of readable text.

        Args:
            text: The line.
            update: Number of optimizer updates so far. By default that of the previous record.
        """

    def record(self, record: Record) -> None:
        """Receives a record of training or of an evaluation."""

    def advance(self, position: StepPosition) -> None:
        """Receives the position after every update. Must be fast."""

    def advance_evaluation(self, batch: int, batches: int) -> None:
        """Receives the number of evaluated batches after each one. Must be fast."""

    def finish(self) -> None:
        """Is called when all epochs are trained and saved. Only messages and `close` follow."""

    def close(self) -> None:
        """Finishes the report. Nothing follows, and a second call has no effect."""


class TimeBudget:
    """Limits the time that a reporter spends to one second plus 1 % of the elapsed time.

    A turn that exceeds the limit is completed. The next one has to wait.
    """

    def __init__(self) -> None:
        self._start, self._spent = time.monotonic(), 0.0

    @property
    def left(self) -> bool:
        """Whether there is time for another turn."""
        return self._spent <= _BUDGET_SECONDS + _BUDGET_SHARE * (time.monotonic() - self._start)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Counts the time of the block, even if the block raises."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - start
