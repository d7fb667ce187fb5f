"""Records of training and evaluation, and the base class of all reporters."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# share of the elapsed time, and additional seconds
_BUDGET_SHARE = 0.01
_BUDGET_SECONDS = 1.0
WORST = 24  # number of wrong predictions that a report shows


@dataclass(frozen=True)
class StepRecord:
    """Results of training since the previous record.

    Attributes:
        epoch: Current epoch, counted from 1.
        epochs: Number of epochs of the whole run.
        step: Last finished step of the epoch, counted from 1.
        steps_per_epoch: Number of steps of one epoch.
        update: Number of optimizer updates since the start of the run.
        loss: Mean loss.
        metrics: Metric values, keyed by name, such as ``{"top1": 0.98}``.
        learning_rate: Learning rate of the last update.
        images_per_second: Throughput over all ranks.
        data_wait: Share of the time spent waiting for data, 0..1.
        eta_seconds: Estimated seconds until the run ends.
        images: Number of images that loss and metrics are the mean of, over all ranks; 0 if it is unknown, as
            in files of older versions.
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
    images: int = 0


@dataclass(frozen=True)
class StepPosition:
    """The position of a run after an update. The host knows it without waiting for the device.

    Attributes:
        epoch: Current epoch, counted from 1.
        epochs: Number of epochs of the whole run.
        step: Last finished step of the epoch, counted from 1.
        steps_per_epoch: Number of steps of one epoch.
        images: Number of images of this update, over all ranks.
        seconds_left: Seconds until the run must end; infinite without a limit.
    """

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    images: int
    seconds_left: float = math.inf

    @property
    def remaining(self) -> int:
        """Number of steps until the end of the run."""
        return (self.epochs - self.epoch + 1) * self.steps_per_epoch - self.step

    def eta(self, seconds_per_step: float) -> float:
        """Returns the estimated seconds until the run ends: after its last step, or at its time limit."""
        return min(self.remaining * seconds_per_step, max(0.0, self.seconds_left))


@dataclass(frozen=True)
class Mistake:
    """A misclassified sample of an evaluation.

    Attributes:
        position: Index of the sample in the evaluated data set.
        label: True class.
        predicted: Predicted class.
        loss: Cross-entropy in nats. It may be infinite or NaN.
        confidence: Probability of the predicted class, 0..1.
    """

    position: int
    label: int
    predicted: int
    loss: float
    confidence: float


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Results per sample of one evaluation, over all ranks.

    Attributes:
        confusion: Confusion matrix, [classes, classes] int64, one row per true class and one column per
            predicted class; None if there are too many classes.
        confidences: [2, bins] int64, histograms of the probability of the predicted class, with equal bins
            from 0 to 1. Row 0 counts wrong predictions, row 1 counts correct predictions.
        mistakes: All mistakes, in descending order of their losses.
    """

    confusion: NDArray[np.int64] | None
    confidences: NDArray[np.int64]
    mistakes: tuple[Mistake, ...]

    @property
    def worst(self) -> tuple[Mistake, ...]:
        """The mistakes with the highest losses, which a report shows."""
        return self.mistakes[:WORST]

    @property
    def majority(self) -> float | None:
        """Share of the most frequent class among the samples, 0..1; None without a confusion matrix."""
        if self.confusion is None or not self.confusion.sum():
            return None
        return float(self.confusion.sum(axis=1).max() / self.confusion.sum())


@dataclass(frozen=True)
class LabelMistake:
    """A sample with several labels of which some are predicted wrongly.

    Attributes:
        position: Index of the sample in the evaluated data set.
        labels: The wrong labels with the highest losses, highest first, and their probabilities, 0..1. A
            label with a probability above 0.5 was predicted but is not true; the others are true but were not
            predicted.
        wrong: Number of all wrong labels.
        loss: Binary cross-entropy in nats, summed over the labels. It may be infinite or NaN.
    """

    position: int
    labels: tuple[tuple[int, float], ...]
    wrong: int
    loss: float


@dataclass(frozen=True, eq=False)
class LabelOutcomes:
    """Results per sample of one evaluation with several labels per sample, over all ranks.

    A label is predicted if its probability is above 0.5.

    Attributes:
        correct: Number of samples for which the label is true and predicted, [classes] int64.
        predicted: Number of samples for which the label is predicted, [classes] int64.
        true: Number of samples for which the label is true, [classes] int64.
        mistakes: All samples with wrong labels, in descending order of their losses.
    """

    correct: NDArray[np.int64]
    predicted: NDArray[np.int64]
    true: NDArray[np.int64]
    mistakes: tuple[LabelMistake, ...]

    @property
    def worst(self) -> tuple[LabelMistake, ...]:
        """The samples with the highest losses, which a report shows."""
        return self.mistakes[:WORST]


@dataclass(frozen=True, eq=False)
class Histogram:
    """Distribution of the values of a tensor.

    Attributes:
        counts: Number of values in each bin, [bins] int64.
        edges: Limits of the bins, [bins + 1] float64, ascending.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]


@dataclass(frozen=True)
class EvalRecord:
    """Results of one evaluation.

    Attributes:
        epoch: Number of finished epochs.
        update: Number of optimizer updates since the start of the run.
        loss: Mean loss over ``images``.
        metrics: Metric values, keyed by name, such as ``{"top1": 0.98}``.
        images: Number of evaluated images, over all ranks.
        seconds: Duration of the evaluation in seconds.
        best: Whether this is the best evaluation so far.
        outcomes: Results per sample; None if they were not collected. They are not written to files.
    """

    epoch: int
    update: int
    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float
    best: bool
    outcomes: Outcomes | LabelOutcomes | None = field(default=None, compare=False, repr=False)


Record: TypeAlias = StepRecord | EvalRecord


class Reporter:
    """Base class of reporters, which receive messages and records of a run. Its methods do nothing."""

    def message(self, text: str, update: int | None = None) -> None:
        """Receives a message.

        Args:
            text: Text of the message.
            update: Number of finished optimizer updates; None for the number in the previous record.
        """

    def record(self, record: Record) -> None:
        """Receives a record of training or of an evaluation."""

    def advance(self, position: StepPosition) -> None:
        """Receives the position after every update. Must be fast, because training waits for it."""

    def advance_evaluation(self, batch: int, batches: int) -> None:
        """Receives the progress of an evaluation after every batch. Must be fast.

        Args:
            batch: Number of evaluated batches.
            batches: Number of all batches.
        """

    def finish(self) -> None:
        """Called when all epochs are trained and saved. Only messages and `close` follow."""

    def close(self) -> None:
        """Completes the report. No other method is called afterwards; a second `close` has no effect."""


class TimeBudget:
    """Limits the time that a reporter spends on costly work to one second plus 1 % of the elapsed time.

    Work that exceeds the limit is completed, but the next work must wait until enough time has passed.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._spent = 0.0

    @property
    def left(self) -> bool:
        """Whether the reporter may do more work now."""
        return self._spent <= _BUDGET_SECONDS + _BUDGET_SHARE * (time.monotonic() - self._start)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Returns a context whose duration is counted, even if it raises an error."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - start
