"""Learning-rate schedules: ``Optimizer.lr``.

Decisions:
- The learning rate is a function of the number of the update, so that resuming needs no state. Only
  `ReduceOnPlateau` also depends on evaluations; `Plateau` holds its state.
- The base class computes the warm-up, and `Schedule.decayed` of each class the rest. No schedule uses Paddle:
  its schedulers count calls, so a resumed run would have to replay them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.component import Component
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Bound, Count, Index, NonNegative, Part, Positive
from ppcls.config.base.problems import problem
from ppcls.optimizer.plateau import Plateau
from ppcls.registry import SCHEDULES

LearningRate = Callable[[float], float]
_DECAY_INTERVAL = (
    30  # epochs between two changes of the rate if `learning_rate` of PaddleClas's Piecewise is set
)
Factor = Annotated[float, Bound(gt=0, le=1)]


class ScheduleTime(NamedTuple):
    """A point in time of a run, after the warm-up.

    Attributes:
        epoch: Number of epochs since the start of the run.
        progress: Position between the end of the warm-up (0) and the end of the run (1).
        warm: Number of epochs since the end of the warm-up.
        tick: Number of updates since the end of the warm-up, or number of epochs with ``by_epoch``.
    """

    epoch: float
    progress: float
    warm: float
    tick: float


class Schedule(Component, registry=SCHEDULES):
    """Keys of all learning rate schedules.

    During the warm-up, the rate rises linearly from ``warmup_start_lr`` to the first rate of the schedule.

    Attributes:
        ordered: Two keys. The value of the first must not exceed the value of the second.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "epochs": "Global.epochs is the length of the run",
        "last_epoch": "a resumed run continues its schedule; in PaddleClas, 0 puts the schedule one update "
        "ahead, or one epoch with by_epoch",
        "verbose": "the log shows the learning rate",
        "step_each_epoch": "the number of updates per epoch follows from the data set and the batch size",
    }
    ordered: ClassVar[tuple[str, str] | None] = None
    warmup_epoch: NonNegative = 0.0
    """Length of the warm-up in epochs; 0 for no warm-up. If the run has no more epochs than this, the warm-up
    is the first half of the run."""
    warmup_start_lr: NonNegative = 0.0
    """Learning rate of the first update of the warm-up."""
    by_epoch: bool = False
    """Change the learning rate once per epoch instead of at every update."""

    @property
    def peak(self) -> float:
        """Learning rate at the end of the warm-up."""
        raise NotImplementedError(f"{self.kind} does not define peak")

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        raise NotImplementedError(f"{self.kind} does not define decayed")

    def build(self, epochs: int, updates_per_epoch: int) -> LearningRate:
        """Returns a function that maps the index of an update to its learning rate.

        Time is measured in epochs since the start of the run. It is ``update / updates_per_epoch``, rounded
        down with ``by_epoch``. The learning rate increases linearly during the warm-up. After the warm-up,
        `decayed` computes it.

        Args:
            epochs: Number of epochs of the whole run, > 0.
            updates_per_epoch: Number of updates per epoch, > 0.

        Returns:
            A function of the index of an update, counted from 0. After the end of the run, its result is
            constant.
        """
        warmup = self.warmup_within(epochs)
        start = self.warmup_start_lr
        peak = self.peak

        def learning_rate(update: float) -> float:
            epoch = update // updates_per_epoch if self.by_epoch else update / updates_per_epoch
            if epoch < warmup:
                return start + (peak - start) * (epoch / warmup)
            warm = epoch - warmup
            tick = warm if self.by_epoch else update - warmup * updates_per_epoch
            return self.decayed(ScheduleTime(epoch, min(warm / (epochs - warmup), 1.0), warm, tick))

        return learning_rate

    def build_plateau(self, epochs: int, metric: str) -> Plateau | None:  # noqa: ARG002
        """Returns the object that lowers the rate after evaluations; None if evaluations have no effect.

        Args:
            epochs: Number of epochs of the whole run.
            metric: Name of the first metric of the evaluation.
        """
        return None

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if self.warmup_epoch > 0 and self.warmup_start_lr > self.peak:
            raise ValueError(
                f"warmup_start_lr ({self.warmup_start_lr:g}) must not exceed "
                f"the learning rate at the end of the warm-up ({self.peak:g})"
            )
        if self.ordered is not None:
            low, high = (getattr(self, name) for name in self.ordered)
            if low > high:
                raise ValueError(f"{self.ordered[0]} ({low:g}) must not exceed {self.ordered[1]} ({high:g})")
        return self

    def warmup_within(self, epochs: int) -> float:
        """Returns the length of the warm-up in epochs: `warmup_epoch`, or half of a run that is not longer.

        Args:
            epochs: Number of epochs of the run.
        """
        return self.warmup_epoch if self.warmup_epoch < epochs else epochs / 2

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:  # noqa: ARG002
        """Yields a warm-up that is not shorter than the run, and the `differences`."""
        warmup = self.warmup_epoch
        if warmup and warmup >= facts.epochs and not facts.fits_head:
            yield (
                f"warmup_epoch ({warmup:g}) is not less than Global.epochs ({facts.epochs}), so the warm-up "
                f"is shortened to {(length := self.warmup_within(facts.epochs)):g} epoch{'s' * (length != 1)}"
            )
        if facts.from_paddleclas:
            yield from self.differences(facts)

    def differences(self, facts: RunFacts) -> Iterator[str]:  # noqa: ARG002
        """Yields a line for each reason why PaddleClas's learning rates for the same keys are different.

        A line starts with the key.
        """
        if self.warmup_epoch % 1:
            yield (
                f"warmup_epoch ({self.warmup_epoch:g}): PaddleClas rounds the warm-up to whole updates, or "
                "rejects it"
            )


class RatedSchedule(Schedule, abstract=True):
    """A schedule that starts at ``learning_rate`` after the warm-up."""

    learning_rate: Positive
    """Learning rate after the warm-up."""

    @property
    def peak(self) -> float:
        """Learning rate at the end of the warm-up: ``learning_rate``."""
        return self.learning_rate


class Constant(RatedSchedule):
    """Keeps the rate at ``learning_rate``."""

    aliases: ClassVar[tuple[str, ...]] = ("ConstLR",)

    def decayed(self, now: ScheduleTime) -> float:  # noqa: ARG002
        """Returns ``learning_rate``."""
        return self.learning_rate


class BoundarySchedule(Schedule, abstract=True):
    """A schedule whose rate changes at certain epochs.

    Attributes:
        boundary_key: Name of the key with these epochs.
    """

    boundary_key: ClassVar[str]
    count_from: Literal["start_of_run", "end_of_warmup"] = "start_of_run"
    """Start of the count of epochs: `start_of_run`, or `end_of_warmup`, as in PaddleClas. The second is the
    default in a file of PaddleClas."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Epochs at which the rate changes."""
        epochs: tuple[int, ...] = getattr(self, self.boundary_key)
        return epochs

    def changes(self, now: ScheduleTime) -> int:
        """Returns the number of changes of the rate until a time after the warm-up."""
        if self.count_from == "end_of_warmup":
            # The difference of two times is not exact: 32.4 - 2.4 epochs must be 30.
            return bisect_right(self.boundaries, now.warm + 1e-9)
        return bisect_right(self.boundaries, now.epoch)

    @model_validator(mode="after")
    def _check_boundaries(self) -> Self:
        epochs = self.boundaries
        for before, after in pairwise(epochs):
            if after <= before:
                raise ValueError(f"{self.boundary_key} must increase, but {after} follows {before}")
        if self.count_from == "start_of_run" and epochs and epochs[0] < self.warmup_epoch:
            raise ValueError(
                f"{self.boundary_key} count from the start of the run, including the warm-up, but "
                f"{epochs[0]} is within the warm-up of {self.warmup_epoch:g} epochs; change it, or set "
                "count_from: end_of_warmup"
            )
        return self

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields the warnings of all schedules, and boundaries that PaddleClas counts differently."""
        yield from super().warnings(facts, part)
        # PaddleClas's keys are the same as ours, so its schedule in another file can't be recognized.
        if self.warmup_epoch and "count_from" not in self.model_fields_set:
            yield (
                f"{self.boundary_key} count from the start of the run, in PaddleClas from the end of the "
                "warm-up; set count_from to start_of_run or end_of_warmup"
            )


class Piecewise(BoundarySchedule):
    """Keeps the rate at ``values[i]`` until epoch ``decay_epochs[i]``, then at the next value."""

    boundary_key: ClassVar[str] = "decay_epochs"
    decay_epochs: tuple[Count, ...]
    """Epochs at which the learning rate changes, counted from 0 at the start of the run, or at the end of the
    warm-up (`count_from`)."""
    values: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    """Learning rates, one more than there are `decay_epochs`. The first rate applies before epoch
    `decay_epochs[0]`, the second from this epoch on, and so on."""
    learning_rate: Positive | None = None
    """Accepted for compatibility with PaddleClas; must equal `values[0]`."""

    @property
    def peak(self) -> float:
        """Learning rate at the end of the warm-up: ``values[0]``."""
        return self.values[0]

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if len(self.values) != len(self.decay_epochs) + 1:
            raise ValueError(
                "expected one more value than decay_epochs, "
                f"but there are {len(self.values)} values for {len(self.decay_epochs)} decay_epochs"
            )
        if self.learning_rate is not None and self.learning_rate != self.values[0]:
            raise ValueError(
                f"learning_rate ({self.learning_rate:g}) differs from values[0] ({self.values[0]:g}), "
                "which is used; change both, or remove learning_rate"
            )
        return self

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        return self.values[self.changes(now)]

    def differences(self, facts: RunFacts) -> Iterator[str]:
        """Yields the differences of all schedules, and a ``learning_rate`` that replaces the other keys."""
        yield from super().differences(facts)
        if self.learning_rate is None:
            return
        epochs = tuple(range(_DECAY_INTERVAL, facts.epochs, _DECAY_INTERVAL))
        rates = [self.learning_rate * 0.1**number for number in range(len(epochs) + 1)]
        own_epochs = tuple(epoch for epoch in self.decay_epochs if epoch < facts.epochs)
        own_rates = self.values[: len(own_epochs) + 1]
        if epochs != own_epochs or not all(map(math.isclose, rates, own_rates)):
            yield (
                "learning_rate has no effect; in PaddleClas, it divides the rate by 10 every "
                f"{_DECAY_INTERVAL} epochs, and decay_epochs and values have no effect"
            )


class MultiStepDecay(BoundarySchedule, RatedSchedule):
    """Multiplies the rate by ``gamma`` at each of the epochs in ``milestones``."""

    aliases: ClassVar[tuple[str, ...]] = ("MultiStep",)
    boundary_key: ClassVar[str] = "milestones"
    milestones: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Epochs at which the learning rate changes, counted from 0 at the start of the run, or at the end of the
    warm-up (`count_from`)."""
    gamma: Factor = 0.1
    """Factor by which each change multiplies the learning rate."""

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        return self.learning_rate * math.pow(self.gamma, self.changes(now))


class Cosine(RatedSchedule):
    """Lowers the rate along half a cosine until the end of the run (Loshchilov & Hutter 2017, eq. 5)."""

    ordered: ClassVar[tuple[str, str] | None] = ("eta_min", "learning_rate")
    eta_min: NonNegative = 0.0
    """Learning rate at the end of the run."""

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        share = (1.0 + math.cos(math.pi * now.progress)) / 2.0
        return self.eta_min + (self.learning_rate - self.eta_min) * share


class CosineFixmatch(RatedSchedule):
    """Sets the rate to ``learning_rate * cos(pi * num_cycles * progress)`` (FixMatch, Sohn et al. 2020).

    ``progress`` rises from 0 at the end of the warm-up to 1 at the end of the run.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        **RatedSchedule.ignored,
        "num_warmup_steps": "set warmup_epoch instead",
    }
    num_cycles: Annotated[float, Bound(gt=0, le=0.5)] = 7 / 16
    """Number of half periods of the cosine in the run. With 0.5 the learning rate ends at 0."""

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        return self.learning_rate * math.cos(math.pi * self.num_cycles * now.progress)

    def differences(self, facts: RunFacts) -> Iterator[str]:
        """Yields the differences of all schedules, and ``by_epoch``."""
        yield from super().differences(facts)
        if self.by_epoch:
            yield "by_epoch: PaddleClas counts epochs as updates, so its rate stays close to learning_rate"


class Polynomial(RatedSchedule):
    """Sets the rate to ``end_lr + (learning_rate - end_lr) * (1 - progress) ** power``.

    ``progress`` rises from 0 at the end of the warm-up to 1 at the end of the run.
    """

    ordered: ClassVar[tuple[str, str] | None] = ("end_lr", "learning_rate")
    end_lr: NonNegative = 0.0
    """Learning rate at the end of the run."""
    power: Positive = 1.0
    """Exponent of the curve. With 1 the learning rate falls linearly."""

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        share = math.pow(1.0 - now.progress, self.power)
        return self.end_lr + (self.learning_rate - self.end_lr) * share

    def differences(self, facts: RunFacts) -> Iterator[str]:
        """Yields the differences of all schedules, and a warm-up with ``by_epoch``."""
        yield from super().differences(facts)
        if self.by_epoch and self.warmup_epoch:
            yield "warmup_epoch: with by_epoch, PaddleClas's warm-up has an epoch for each update"


class Linear(Polynomial):
    """PaddleClas's name for `Polynomial`. The rate falls linearly if ``power`` is not set."""


class Step(RatedSchedule):
    """Multiplies the rate by ``gamma`` every ``step_size`` epochs after the end of the warm-up."""

    step_size: Positive
    """Number of epochs between two changes of the learning rate. May be fractional."""
    gamma: Factor = 0.1
    """Factor by which each change multiplies the learning rate."""

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        steps = math.floor(now.warm / self.step_size + 1e-9)  # 2.4 / 0.8 must be 3 despite rounding
        return self.learning_rate * math.pow(self.gamma, steps)

    def differences(self, facts: RunFacts) -> Iterator[str]:
        """Yields the differences of all schedules, and intervals that are not whole epochs."""
        yield from super().differences(facts)
        if self.step_size % 1:
            yield f"step_size ({self.step_size:g}): PaddleClas rounds it down to whole updates"


class Cyclic(Schedule):
    """Raises and lowers the rate linearly between two values, in cycles (Smith 2017, section 3.1).

    The first cycle starts at the end of the warm-up.
    """

    key_hints: ClassVar[Mapping[str, str]] = {
        "scale_fn": "mode sets how the height of cycles changes",
        "scale_mode": "mode sets how the height of cycles changes",
    }
    ordered: ClassVar[tuple[str, str] | None] = ("base_learning_rate", "max_learning_rate")
    base_learning_rate: NonNegative
    """Lowest learning rate, with which each cycle starts."""
    max_learning_rate: Positive
    """Highest learning rate of the first cycle."""
    step_size_up: Count
    """Time in which the learning rate rises, in updates, or in epochs with `by_epoch: True`."""
    step_size_down: Count | None = None
    """Time in which the learning rate falls, in updates, or in epochs with `by_epoch: True`; default: the
    value of `step_size_up`."""
    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    """Change of the height of the cycles: `triangular`: constant height; `triangular2`: halved after each
    cycle; `exp_range`: multiplied by `exp_gamma` at each update, or at each epoch with `by_epoch: True`."""
    exp_gamma: Factor = 1.0
    """Factor of the height of the cycles, with `mode: exp_range`."""

    @property
    def peak(self) -> float:
        """Learning rate at the end of the warm-up: ``base_learning_rate``."""
        return self.base_learning_rate

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if "exp_gamma" in self.model_fields_set and self.mode != "exp_range" and self.exp_gamma != 1:
            raise ValueError(f"exp_gamma needs mode: exp_range, but mode is {self.mode}")
        return self

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        up = self.step_size_up
        down = self.step_size_down or self.step_size_up
        cycle, position = divmod(now.tick, up + down)
        height = position / up if position <= up else (up + down - position) / down
        scale = {
            "triangular": 1.0,
            "triangular2": math.pow(0.5, cycle),
            "exp_range": math.pow(self.exp_gamma, now.tick),
        }[self.mode]
        lowest = self.base_learning_rate
        return lowest + (self.max_learning_rate - lowest) * height * scale


class OneCycleLR(Schedule):
    """Raises the rate once and lowers it slowly until the end of the run (Smith & Topin 2019).

    The rate starts at ``max_learning_rate / divide_factor``, so ``warmup_epoch`` is not supported.
    """

    max_learning_rate: Positive
    """Highest learning rate."""
    divide_factor: Annotated[float, Bound(ge=1)] = 25.0
    """Ratio of the highest learning rate to the initial one."""
    end_learning_rate: NonNegative = 1e-10
    """Learning rate at the end of the run."""
    phase_pct: Part = 0.3
    """Share of the run in which the learning rate rises, 0 to 1."""
    anneal_strategy: Literal["cos", "linear"] = "cos"
    """Shape of rise and fall: half a cosine (`cos`), or a straight line (`linear`)."""
    three_phase: bool = False
    """Lower the rate in two phases: first to its initial value, in the same time as the rise, then to
    `end_learning_rate`."""

    @property
    def first(self) -> float:
        """Learning rate of the first update."""
        return self.max_learning_rate / self.divide_factor

    @property
    def peak(self) -> float:
        """Highest learning rate: ``max_learning_rate``."""
        return self.max_learning_rate

    @model_validator(mode="after")
    def _check_phases(self) -> Self:
        if self.warmup_epoch:
            raise ValueError("OneCycleLR has its own warm-up, of length phase_pct; remove warmup_epoch")
        if self.end_learning_rate > self.first:
            raise ValueError(
                f"end_learning_rate ({self.end_learning_rate:g}) must not exceed the first rate, "
                f"max_learning_rate / divide_factor ({self.first:g})"
            )
        if self.three_phase and self.phase_pct >= 0.5:
            raise ValueError(f"phase_pct must be less than 0.5 for three phases, got {self.phase_pct:g}")
        return self

    def decayed(self, now: ScheduleTime) -> float:
        """Returns the learning rate at a time after the warm-up."""
        turns = [(0.0, self.first), (self.phase_pct, self.peak), (1.0, self.end_learning_rate)]
        if self.three_phase:
            turns.insert(2, (2 * self.phase_pct, self.first))
        for (begin, start), (end, stop) in pairwise(turns):
            if now.progress <= end:
                share = (now.progress - begin) / (end - begin)
                if self.anneal_strategy == "cos":
                    share = (1.0 - math.cos(math.pi * share)) / 2.0
                return start + (stop - start) * share
        raise AssertionError("progress is at most 1")

    def differences(self, facts: RunFacts) -> Iterator[str]:
        """Yields the differences of all schedules, and the last update."""
        yield from super().differences(facts)
        if self.by_epoch:
            yield "by_epoch: PaddleClas counts epochs as updates, so its run ends early in the cycle"
        else:
            yield (
                "name: OneCycleLR reaches end_learning_rate after the last update, in PaddleClas with it, so "
                "PaddleClas's rates are up to one update ahead"
            )


class ReduceOnPlateau(RatedSchedule):
    """Multiplies the rate by ``factor`` when evaluations stop improving. Ignores those during the warm-up."""

    ordered: ClassVar[tuple[str, str] | None] = ("min_lr", "learning_rate")
    mode: Literal["min", "max"] = "min"
    """Value to monitor: `min`: the loss of evaluation, where lower is better; `max`: the first metric of
    Metric.Eval, where the metric defines whether higher or lower is better."""
    factor: Part = 0.1
    """Factor by which each change multiplies the learning rate."""
    patience: Index = 10
    """Number of consecutive evaluations without an improvement to tolerate. The next evaluation without an
    improvement lowers the learning rate."""
    threshold: NonNegative = 1e-4
    """Smallest change of the best value that counts as an improvement."""
    threshold_mode: Literal["rel", "abs"] = "rel"
    """Meaning of `threshold`: a share of the best value (`rel`), or an absolute difference (`abs`)."""
    cooldown: Index = 0
    """Number of evaluations to ignore after a change of the learning rate."""
    min_lr: NonNegative = 0.0
    """Lower limit of the learning rate."""
    epsilon: NonNegative = 1e-8
    """Minimum change of the learning rate. Smaller changes are skipped."""

    def decayed(self, now: ScheduleTime) -> float:  # noqa: ARG002
        """Returns ``learning_rate``, which `Plateau` lowers."""
        return self.learning_rate

    def build_plateau(self, epochs: int, metric: str) -> Plateau:
        """Returns the object that lowers the rate; see `Schedule.build_plateau`."""
        return Plateau(self, self.warmup_within(epochs), metric)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields a run without evaluations."""
        yield from super().problems(facts, part)
        if not facts.evaluates:
            yield problem("ReduceOnPlateau needs evaluations; set Global.eval_during_train: True", "name")

    def differences(self, facts: RunFacts) -> Iterator[str]:
        """Yields the differences of all schedules, and what PaddleClas compares."""
        yield from super().differences(facts)
        if self.warmup_epoch:
            yield "warmup_epoch: with a warm-up, PaddleClas compares numbers of updates, not evaluations"
        elif self.mode == "min":
            yield "mode (min) compares losses; PaddleClas compares the first metric in both modes"
