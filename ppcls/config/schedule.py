"""Learning-rate schedules, as ``Optimizer.lr`` names them in YAML."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.fields import Bound, Count, NonNegative, Positive, Spec


def _check_increasing(name: str, epochs: tuple[int, ...], warmup_epoch: float) -> None:
    """Raises ValueError unless ``epochs`` increase strictly and none lies within the warm-up."""
    for before, after in pairwise(epochs):
        if after <= before:
            raise ValueError(f"{name} must increase, but {after} follows {before}")
    if epochs and epochs[0] < warmup_epoch:
        raise ValueError(
            f"{name} count from the start of the run, warm-up included, "
            f"but {epochs[0]} lies within the warm-up of {warmup_epoch:g} epochs"
        )


class Schedule(Spec):
    """What all schedules share: a linear warm-up from ``warmup_start_lr`` to ``peak``.

    Attributes:
        warmup_epoch: Length of the warm-up in epochs; 0 for none.
        warmup_start_lr: Rate of the run's first update, where there is a warm-up.
        by_epoch: Change the rate once an epoch instead of at every update.
    """

    warmup_epoch: NonNegative = 0.0
    warmup_start_lr: NonNegative = 0.0
    by_epoch: bool = False

    @property
    def peak(self) -> float:
        """The rate at the end of the warm-up."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _warmup_rises(self) -> Self:
        if self.warmup_epoch > 0 and self.warmup_start_lr > self.peak:
            raise ValueError(
                f"warmup_start_lr ({self.warmup_start_lr:g}) must not exceed "
                f"the learning rate that the warm-up leads to ({self.peak:g})"
            )
        return self

    def check_epochs(self, epochs: int) -> None:
        """Checks that the schedule fits a run of ``epochs`` epochs.

        Raises:
            ValueError: The warm-up takes the whole run or more.
        """
        if self.warmup_epoch and self.warmup_epoch >= epochs:
            raise ValueError(
                f"warmup_epoch ({self.warmup_epoch:g}) must be less than "
                f"the number of epochs of the run ({epochs})"
            )


class RatedSchedule(Schedule):
    """A schedule that starts from ``learning_rate`` once it is warm."""

    learning_rate: Positive

    @property
    def peak(self) -> float:
        """``learning_rate``."""
        return self.learning_rate


class Constant(RatedSchedule):
    """Stays at ``learning_rate``."""


class Piecewise(Schedule):
    """``values[i]`` until the epoch ``decay_epochs[i]``, the last value from the last of them on.

    Attributes:
        decay_epochs: Epochs, counted from 0 and from the start of the run, at which the value changes.
        values: The rates, one more than ``decay_epochs``.
        learning_rate: May repeat ``values[0]``.
    """

    decay_epochs: tuple[Count, ...]
    values: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    learning_rate: Positive | None = None

    @property
    def peak(self) -> float:
        """``values[0]``."""
        return self.values[0]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(self.values) != len(self.decay_epochs) + 1:
            raise ValueError(
                f"values must be one more than decay_epochs, "
                f"but there are {len(self.values)} values for {len(self.decay_epochs)} decay_epochs"
            )
        _check_increasing("decay_epochs", self.decay_epochs, self.warmup_epoch)
        if self.learning_rate is not None and self.learning_rate != self.values[0]:
            raise ValueError(
                f"learning_rate ({self.learning_rate:g}) differs from values[0] ({self.values[0]:g}), "
                "which is what counts; change both, or leave learning_rate out"
            )
        return self


class MultiStepDecay(RatedSchedule):
    """Multiplies the rate by ``gamma`` at each epoch of ``milestones``.

    Attributes:
        milestones: Epochs, counted from 0 and from the start of the run.
        gamma: Factor in (0, 1].
    """

    milestones: Annotated[tuple[Count, ...], Field(min_length=1)]
    gamma: Annotated[float, Bound(gt=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _milestones_increase(self) -> Self:
        _check_increasing("milestones", self.milestones, self.warmup_epoch)
        return self


class Cosine(RatedSchedule):
    """Half a cosine from ``learning_rate`` to ``eta_min`` (Loshchilov & Hutter 2017, eq. 5, one cycle)."""

    eta_min: NonNegative = 0.0

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.eta_min > self.learning_rate:
            raise ValueError(
                f"eta_min ({self.eta_min:g}) must not exceed learning_rate ({self.learning_rate:g})"
            )
        return self


class Polynomial(RatedSchedule):
    """``end_lr + (learning_rate - end_lr) * (1 - progress) ** power``, progress from 0 to 1."""

    end_lr: NonNegative = 0.0
    power: Positive = 1.0

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.end_lr > self.learning_rate:
            raise ValueError(
                f"end_lr ({self.end_lr:g}) must not exceed learning_rate ({self.learning_rate:g})"
            )
        return self


class Linear(Polynomial):
    """PaddleClas's name for `Polynomial`; a straight line unless ``power`` says otherwise."""
