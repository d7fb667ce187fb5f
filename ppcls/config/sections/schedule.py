"""Learning-rate schedules, as ``Optimizer.lr`` names them in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Bound, Count, Index, NonNegative, Part, Positive, Spec


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


def _check_above(name: str, upper: float, lower: float, other: str = "base_learning_rate") -> None:
    if lower > upper:
        raise ValueError(f"{other} ({lower:g}) must not exceed {name} ({upper:g})")


class Schedule(Spec):
    """What all schedules share: a linear warm-up from ``warmup_start_lr`` to ``peak``.

    Attributes:
        warmup_epoch: Length of the warm-up in epochs; 0 for none.
        warmup_start_lr: Rate of the run's first update, where there is a warm-up.
        by_epoch: Change the rate once an epoch instead of at every update.
    """

    without_effect: ClassVar[Mapping[str, str]] = {
        "epochs": "Global.epochs is the length of the run",
        "step_each_epoch": "the data set and its batch size say how many updates an epoch has",
    }
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


class Step(RatedSchedule):
    """Multiplies the rate by ``gamma`` every ``step_size`` epochs, counted from the end of the warm-up.

    Attributes:
        step_size: Epochs, also parts of one.
        gamma: Factor in (0, 1].
    """

    step_size: Positive
    gamma: Annotated[float, Bound(gt=0, le=1)] = 0.1


class Cyclic(Schedule):
    """Rises and falls in straight lines between two rates (Smith 2017, section 3.1).

    Steps are optimizer updates, or epochs with ``by_epoch``; the first cycle begins where the warm-up ends.

    Attributes:
        base_learning_rate: The lower rate; a warm-up leads to it.
        max_learning_rate: The upper one.
        step_size_up: Steps of the rise.
        step_size_down: Steps of the fall; by default as many.
        mode: What becomes of the height from cycle to cycle: it stays (triangular), halves (triangular2), or
            falls at each step by the factor ``exp_gamma`` (exp_range).
        exp_gamma: See ``mode``.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "scale_fn": "mode says how cycles become lower",
        "scale_mode": "mode says how cycles become lower",
    }
    base_learning_rate: NonNegative
    max_learning_rate: Positive
    step_size_up: Count
    step_size_down: Count | None = None
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    exp_gamma: Annotated[float, Bound(gt=0, le=1)] = 1.0

    @property
    def peak(self) -> float:
        """``base_learning_rate``."""
        return self.base_learning_rate

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_above("max_learning_rate", self.max_learning_rate, self.base_learning_rate)
        if "exp_gamma" in self.model_fields_set and self.mode != "exp_range" and self.exp_gamma != 1:
            raise ValueError(f"exp_gamma is for mode: exp_range, and mode is {self.mode}")
        return self


class OneCycleLR(Schedule):
    """One rise and one long fall over the whole run (Smith & Topin 2019).

    It begins with ``max_learning_rate / divide_factor``, so that it needs no other warm-up.

    Attributes:
        max_learning_rate: The highest rate.
        divide_factor: The highest rate over the first one.
        end_learning_rate: The last rate.
        phase_pct: Share of the run in which the rate rises.
        anneal_strategy: Along half a cosine, or straight.
        three_phase: Fall to the first rate in as long as the rise took, and then to the last one.
    """

    max_learning_rate: Positive
    divide_factor: Annotated[float, Bound(ge=1)] = 25.0
    end_learning_rate: NonNegative = 1e-10
    phase_pct: Part = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    three_phase: bool = False

    @property
    def first(self) -> float:
        """The rate that the run begins with."""
        return self.max_learning_rate / self.divide_factor

    @property
    def peak(self) -> float:
        """``max_learning_rate``."""
        return self.max_learning_rate

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.warmup_epoch:
            raise ValueError("OneCycleLR rises by itself, for phase_pct of the run; remove warmup_epoch")
        if self.end_learning_rate > self.first:
            raise ValueError(
                f"end_learning_rate ({self.end_learning_rate:g}) must not exceed the first rate, "
                f"max_learning_rate / divide_factor ({self.first:g})"
            )
        if self.three_phase and self.phase_pct >= 0.5:
            raise ValueError(f"phase_pct must be less than 0.5 for three phases, got {self.phase_pct:g}")
        return self


class ReduceOnPlateau(RatedSchedule):
    """Multiplies the rate by ``factor`` when evaluations have not become better for a while.

    It looks at each evaluation behind the warm-up, all processes at the same numbers.

    Attributes:
        mode: ``min`` watches the evaluation's loss, ``max`` the first metric of ``Metric.Eval``: whether that
            became better, whichever way is better for it.
        factor: In (0, 1).
        patience: So many evaluations in a row may be no better than the best; the next one lowers the rate.
        threshold: How much better than the best counts.
        threshold_mode: Whether ``threshold`` is a share of the best (rel) or a difference (abs).
        cooldown: Evaluations after a change at which nothing is looked at.
        min_lr: The rate falls no lower.
        epsilon: A smaller change of the rate is not made.
    """

    mode: Literal["min", "max"] = "min"
    factor: Part = 0.1
    patience: Index = 10
    threshold: NonNegative = 1e-4
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: Index = 0
    min_lr: NonNegative = 0.0
    epsilon: NonNegative = 1e-8

    @model_validator(mode="after")
    def _falls(self) -> Self:
        _check_above("learning_rate", self.learning_rate, self.min_lr, "min_lr")
        return self
