"""What a run reports, and who listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    """

    epoch: int
    update: int
    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float
    best: bool


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
