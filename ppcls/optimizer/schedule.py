"""The learning rate as a pure function of the update's index, so that resuming needs no state.

`ReduceOnPlateau` alone goes by evaluations, too: see `ppcls.optimizer.plateau`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple

from ppcls.config.sections.schedule import (
    Constant,
    Cosine,
    Cyclic,
    MultiStepDecay,
    OneCycleLR,
    Piecewise,
    Polynomial,
    ReduceOnPlateau,
    Schedule,
    Step,
)


class Time(NamedTuple):
    """A moment of a run.

    Attributes:
        epoch: From the start of the run, in epochs.
        progress: Position in [0, 1] between the end of the warm-up and the end of the run.
        warm: Epochs since the end of the warm-up.
        tick: Optimizer updates since then, or epochs with ``by_epoch``.
    """

    epoch: float
    progress: float
    warm: float
    tick: float


def build_schedule(spec: Schedule, epochs: int, updates_per_epoch: int) -> Callable[[int], float]:
    """Builds the function from the index of an optimizer update to its learning rate.

    Time runs in epochs from the start of the run: ``update / updates_per_epoch``, or its integer part with
    ``by_epoch``. During the warm-up the rate rises linearly in time; `decayed` gives it from there on.

    Args:
        spec: The schedule.
        epochs: Epochs of the whole run, > 0.
        updates_per_epoch: Optimizer updates per epoch, > 0.

    Returns:
        A function of the update's index, which counts from 0; past the end of the run the rate stays.

    Raises:
        ValueError: The warm-up is not shorter than the run.
    """
    spec.check_epochs(epochs)
    warmup, start, peak = spec.warmup_epoch, spec.warmup_start_lr, spec.peak

    def learning_rate(update: int) -> float:
        epoch = update // updates_per_epoch if spec.by_epoch else update / updates_per_epoch
        if epoch < warmup:
            return start + (peak - start) * (epoch / warmup)
        warm = epoch - warmup
        tick = warm if spec.by_epoch else update - warmup * updates_per_epoch
        return decayed(spec, Time(epoch, min(warm / (epochs - warmup), 1.0), warm, tick))

    return learning_rate


@singledispatch
def decayed(spec: Schedule, _now: Time) -> float:
    """The learning rate of ``spec`` once it is warm.

    Raises:
        TypeError: No rule for this kind of schedule.
    """
    raise TypeError(f"no learning rate is defined for the schedule {spec.kind}")


@decayed.register
def _(spec: Constant, _now: Time) -> float:
    return spec.learning_rate


@decayed.register
def _(spec: Piecewise, now: Time) -> float:
    return spec.values[bisect_right(spec.decay_epochs, now.epoch)]


@decayed.register
def _(spec: MultiStepDecay, now: Time) -> float:
    return spec.learning_rate * math.pow(spec.gamma, bisect_right(spec.milestones, now.epoch))


@decayed.register
def _(spec: Cosine, now: Time) -> float:
    share = (1.0 + math.cos(math.pi * now.progress)) / 2.0
    return spec.eta_min + (spec.learning_rate - spec.eta_min) * share


@decayed.register
def _(spec: Polynomial, now: Time) -> float:
    share = math.pow(1.0 - now.progress, spec.power)
    return spec.end_lr + (spec.learning_rate - spec.end_lr) * share


@decayed.register
def _(spec: Step, now: Time) -> float:
    steps = math.floor(now.warm / spec.step_size + 1e-9)  # 2.4 epochs are three steps of 0.8
    return spec.learning_rate * math.pow(spec.gamma, steps)


@decayed.register
def _(spec: Cyclic, now: Time) -> float:
    up, down = spec.step_size_up, spec.step_size_down or spec.step_size_up
    cycle, place = divmod(now.tick, up + down)
    height = place / up if place <= up else (up + down - place) / down
    shrunk = {
        "triangular": 1.0,
        "triangular2": math.pow(0.5, cycle),
        "exp_range": math.pow(spec.exp_gamma, now.tick),
    }[spec.mode]
    return spec.base_learning_rate + (spec.max_learning_rate - spec.base_learning_rate) * height * shrunk


@decayed.register
def _(spec: OneCycleLR, now: Time) -> float:
    turns = [(0.0, spec.first), (spec.phase_pct, spec.peak), (1.0, spec.end_learning_rate)]
    if spec.three_phase:
        turns.insert(2, (2 * spec.phase_pct, spec.first))
    for (begin, start), (end, stop) in pairwise(turns):
        if now.progress <= end:
            share = (now.progress - begin) / (end - begin)
            if spec.anneal_strategy == "cos":
                share = (1.0 - math.cos(math.pi * share)) / 2.0
            return start + (stop - start) * share
    raise AssertionError("progress is at most 1")


@decayed.register
def _(spec: ReduceOnPlateau, _now: Time) -> float:
    return spec.learning_rate  # `ppcls.optimizer.plateau` lowers it
