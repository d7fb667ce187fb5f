"""The learning rate as a pure function of the update's index, so that resuming needs no state."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

from ppcls.config.schedule import Constant, Cosine, MultiStepDecay, Piecewise, Polynomial, Schedule


class Time(NamedTuple):
    """A moment of a run.

    Attributes:
        epoch: From the start of the run, in epochs.
        progress: Position in [0, 1] between the end of the warm-up and the end of the run.
    """

    epoch: float
    progress: float


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
        return decayed(spec, Time(epoch, min((epoch - warmup) / (epochs - warmup), 1.0)))

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
