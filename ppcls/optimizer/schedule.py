"""The learning rate as a function of the number of the update, so that resuming needs no state.

Only `ReduceOnPlateau` also depends on evaluations; see `ppcls.optimizer.plateau`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ppcls.config.sections.schedule import (
    Constant,
    Cosine,
    CosineFixmatch,
    Cyclic,
    MultiStepDecay,
    OneCycleLR,
    Piecewise,
    Polynomial,
    ReduceOnPlateau,
    Schedule,
    Step,
)

LearningRate = Callable[[int], float]


class ScheduleTime(NamedTuple):
    """A point in time of a run.

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


def build_schedule(spec: Schedule, epochs: int, updates_per_epoch: int) -> LearningRate:
    """Returns a function that maps the index of an update to its learning rate.

    Time is measured in epochs since the start of the run. It is ``update / updates_per_epoch``, rounded down
    with ``by_epoch``. The learning rate increases linearly during the warm-up. After the warm-up, `decayed`
    computes it.

    Args:
        spec: Settings of the schedule.
        epochs: Number of epochs of the whole run, > 0.
        updates_per_epoch: Number of updates per epoch, > 0.

    Returns:
        A function of the index of an update, counted from 0. After the end of the run, its result is
        constant.
    """
    warmup = spec.warmup_within(epochs)
    start = spec.warmup_start_lr
    peak = spec.peak

    def learning_rate(update: int) -> float:
        epoch = update // updates_per_epoch if spec.by_epoch else update / updates_per_epoch
        if epoch < warmup:
            return start + (peak - start) * (epoch / warmup)
        warm = epoch - warmup
        tick = warm if spec.by_epoch else update - warmup * updates_per_epoch
        return decayed(spec, ScheduleTime(epoch, min(warm / (epochs - warmup), 1.0), warm, tick))

    return learning_rate


def decayed(spec: Schedule, now: ScheduleTime) -> float:
    """Returns the learning rate of ``spec`` at a time after the warm-up.

    Raises:
        TypeError: The kind of schedule is unknown.
    """
    match spec:
        case Constant() | ReduceOnPlateau():  # `ppcls.optimizer.plateau` lowers the rate of ReduceOnPlateau
            return spec.learning_rate
        case Piecewise():
            return spec.values[bisect_right(spec.decay_epochs, now.epoch)]
        case MultiStepDecay():
            return spec.learning_rate * math.pow(spec.gamma, bisect_right(spec.milestones, now.epoch))
        case Cosine():
            share = (1.0 + math.cos(math.pi * now.progress)) / 2.0
            return spec.eta_min + (spec.learning_rate - spec.eta_min) * share
        case CosineFixmatch():
            return spec.learning_rate * math.cos(math.pi * spec.num_cycles * now.progress)
        case Polynomial():
            share = math.pow(1.0 - now.progress, spec.power)
            return spec.end_lr + (spec.learning_rate - spec.end_lr) * share
        case Step():
            steps = math.floor(now.warm / spec.step_size + 1e-9)  # 2.4 / 0.8 must be 3 despite rounding
            return spec.learning_rate * math.pow(spec.gamma, steps)
        case Cyclic():
            return _cyclic(spec, now.tick)
        case OneCycleLR():
            return _one_cycle(spec, now.progress)
    raise TypeError(f"no learning rate is defined for the schedule {spec.kind}")


def _cyclic(spec: Cyclic, tick: float) -> float:
    up = spec.step_size_up
    down = spec.step_size_down or spec.step_size_up
    cycle, position = divmod(tick, up + down)
    height = position / up if position <= up else (up + down - position) / down
    scale = {
        "triangular": 1.0,
        "triangular2": math.pow(0.5, cycle),
        "exp_range": math.pow(spec.exp_gamma, tick),
    }[spec.mode]
    return spec.base_learning_rate + (spec.max_learning_rate - spec.base_learning_rate) * height * scale


def _one_cycle(spec: OneCycleLR, progress: float) -> float:
    turns = [(0.0, spec.first), (spec.phase_pct, spec.peak), (1.0, spec.end_learning_rate)]
    if spec.three_phase:
        turns.insert(2, (2 * spec.phase_pct, spec.first))
    for (begin, start), (end, stop) in pairwise(turns):
        if progress <= end:
            share = (progress - begin) / (end - begin)
            if spec.anneal_strategy == "cos":
                share = (1.0 - math.cos(math.pi * share)) / 2.0
            return start + (stop - start) * share
    raise AssertionError("progress is at most 1")


@dataclass(frozen=True)
class RateScale:
    """Scales learning rates with the global batch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).

    Attributes:
        images: Number of images per step on all ranks together.
        processes: World size.
        steps: Number of steps per update, whose gradients are accumulated.
        base: Number of images per update for which the config's learning rates were chosen.
    """

    images: int
    processes: int
    steps: int
    base: int

    @property
    def factor(self) -> float:
        """Factor for all learning rates, including those of the warm-up: images per update / `base`."""
        return self.images * self.steps / self.base

    def applied(self, schedule: LearningRate) -> LearningRate:
        """Returns ``schedule`` multiplied by the factor."""
        return lambda update: self.factor * schedule(update)

    def describe(self) -> str:
        """Returns a line for the log that explains the factor."""
        return (
            f"learning rates x {self.factor:.6g}: {self.images * self.steps} images per update "
            f"({self.images} per step on {self.processes} process{'es' if self.processes > 1 else ''} x "
            f"update_freq {self.steps}), Global.base_batch_size {self.base}"
        )
