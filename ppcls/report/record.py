"""What a run reports, and who listens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the watchdog's process imports this without site-packages
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class StepRecord:
    """Training since the record before this one.

    Attributes:
        epoch: Running epoch, 1-based.
        epochs: Epochs of the whole run.
        step: Last finished step of the epoch, 1-based.
        steps_per_epoch: Steps of one epoch.
        update: Optimizer updates since the run's start.
        loss: Mean loss.
        metrics: Name to value, such as ``{"top1": 0.98}``.
        learning_rate: Of the last update.
        images_per_second: Over all ranks.
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
class Mistake:
    """A sample that an evaluation got wrong.

    Attributes:
        position: In the evaluated dataset.
        label: Its class.
        predicted: The class that it was taken for.
        loss: Cross-entropy, in nats; may be infinite or NaN.
        confidence: Probability of ``predicted``, 0..1.
    """

    position: int
    label: int
    predicted: int
    loss: float
    confidence: float


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What one evaluation did sample by sample, over all ranks.

    Attributes:
        confusion: [classes, classes] int64, how often each label (row) was taken for each class (column);
            None where there are too many classes.
        confidences: [2, bins] int64, how many predictions were wrong (0) and right (1) by the probability of
            the predicted class, in bins of equal width from 0 to 1.
        worst: The mistakes of the highest loss, the worst first.
    """

    confusion: NDArray[np.int64] | None
    confidences: NDArray[np.int64]
    worst: tuple[Mistake, ...]


@dataclass(frozen=True, eq=False)
class Histogram:
    """How numbers are distributed.

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
        epoch: Finished epochs.
        update: Optimizer updates since the run's start.
        loss: Mean loss over ``images``.
        metrics: Name to value, such as ``{"top1": 0.98}``.
        images: Images evaluated, over all ranks.
        seconds: Time taken.
        best: Whether it is the best evaluation of the run so far.
        outcomes: Sample by sample, where that was asked for; not kept in files.
    """

    epoch: int
    update: int
    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float
    best: bool
    outcomes: Outcomes | None = field(default=None, compare=False, repr=False)


class Reporter(Protocol):
    """Takes what a run reports, in order of time."""

    def message(self, text: str) -> None:
        """Tells one line for people."""

    def train(self, record: StepRecord) -> None:
        """Tells how training goes."""

    def evaluation(self, record: EvalRecord) -> None:
        """Tells the result of an evaluation."""

    def close(self) -> None:
        """Finishes; nothing follows. A second call does nothing."""
