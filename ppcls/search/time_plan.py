"""Plans a run that ends within a given time: ``ppcls train --time 10m``.

`ppcls.search.run_speed` measures the speed. The plan is a pure function of its figures.

Decisions:

- The plan keeps the size of the images if at least `_ENOUGH_EPOCHS` epochs fit, because smaller images cost
  accuracy, and then tries smaller images.
- A head is planned if too few epochs of fine-tuning fit, or fewer than `ENOUGH_UPDATES`.
- All durations are measured on this machine, under its present load.
- A tenth of the rest is a reserve. The plan is a forecast, so the run also gets a limit,
  ``Global.time_limit``, which renews the plan after each update (`ppcls.engine.health.time_limit`).
- If nothing is expected to fit, the shortest run is planned, and the limit ends it early. A head on the
  features of some images is better than no model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ppcls.engine.head.expectation import ENOUGH_UPDATES, FIT_EXPONENT, FIT_ROWS, MOST_EPOCHS
from ppcls.engine.head.section import LinearHead
from ppcls.errors import UserError, counted

_RESERVE = 0.1  # share of the remaining time
_ENOUGH_EPOCHS = 10
_SIDES = (0.75, 0.5, 0.3)  # further sides of the images, relative to the measured one
_SIDE_STEP = 32
_SMALLEST_SIDE = 64
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FEATURE_SHARE = 0.6  # of the time; the rest is for the fit, as in `ppcls.engine.head.fit`


def read_duration(text: str) -> float:
    """Returns the seconds of a duration such as ``90s``, ``10m`` or ``1.5h``.

    Raises:
        ValueError: The text is no such duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"expected a duration such as 90s, 10m or 1h, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Measured:
    """What was measured of a run.

    Attributes:
        images: Number of training images.
        epoch: Seconds of training per epoch.
        updates: Number of updates per epoch.
        evaluation: Seconds per evaluation.
        features: Seconds in which the features of all training images are computed, for one view.
        fit: Seconds of fitting a head on `FIT_ROWS` rows of features.
        can_fit: Whether a head can be fitted: the run has pretrained weights and a linear layer.
        end: Expected seconds from the last evaluation to the end of the process.
        build: Seconds of building the run, which are needed again.
        used: Seconds from the start of the program to the end of the measurement.
    """

    images: int
    epoch: float
    updates: int
    evaluation: float
    features: float
    fit: float
    can_fit: bool
    end: float = 0.0
    build: float = 0.0
    used: float = 0.0


@dataclass(frozen=True)
class TimePlan:
    """A run that ends in time.

    Attributes:
        head: Whether only a head is fitted.
        epochs: Number of epochs.
        side: Side of the images in pixels.
        views: Random views per image for a head; None for the default.
        seconds: Expected duration of the whole command.
        why: Reason, for the log.
    """

    head: bool
    epochs: int
    side: int
    views: int | None
    seconds: float
    why: str

    def describe(self) -> str:
        """Returns the plan as a line for the log."""
        what = "a head on frozen features" if self.head else f"{counted(self.epochs, 'epoch')} of training"
        size = f"{self.side} x {self.side} pixels"
        return f"plan: {what} with {size}, about {self.seconds:.0f} s in all, because {self.why}"


def plan_run(measured: Measured, seconds: float, side: int, *, resizable: bool) -> TimePlan:
    """Returns the run that is expected to be best among those that end in time.

    Args:
        measured: Figures of one epoch with images of ``side``.
        seconds: Duration of the whole command, with its start and the measurement.
        side: Side of the measured images in pixels.
        resizable: Whether the model and the config accept smaller images.

    Raises:
        UserError: The end of the run does not fit.
    """
    fixed = measured.used + measured.build + measured.end
    budget = (seconds - fixed) * (1 - _RESERVE)
    sides = [side, *smaller_sides(side)] if resizable else [side]
    if budget <= 0:
        raise UserError(
            f"--time: the start and the measurement took {measured.used:.0f} s, so that no run ends within "
            f"{seconds:.0f} s; expected at least {math.ceil(fixed) + 1} s; choose more time or a smaller "
            "--model, or end other programs"
        )
    heads = [plan for each in sides for plan in _heads(measured, each, each / side, budget)]
    heads = heads if measured.can_fit else []
    fitting_heads = [replace(plan, seconds=plan.seconds + fixed) for plan in heads if plan.seconds <= budget]
    least = ENOUGH_UPDATES if fitting_heads else 0
    fitting = [(each, _epochs(measured, budget, each / side)) for each in sides]
    for each, epochs in fitting:
        if epochs >= _ENOUGH_EPOCHS and epochs * measured.updates >= least:
            why = "the time suffices"
            if each != side:
                why = f"larger images allow fewer than {_describe_least(measured, least)}"
            return _training(measured, each, side, epochs, why)
    if fitting_heads:
        missing = _describe_least(measured, least)
        why = f"fewer than {missing} of fine-tuning fit into the time and {MOST_EPOCHS} epochs"
        return replace(fitting_heads[0], why=why)
    if fitting[-1][1]:
        each, epochs = fitting[-1]
        return _training(measured, each, side, epochs, f"only {counted(epochs, 'epoch fits', 'epochs fit')}")
    why = "no longer run fits"
    if heads:
        return replace(heads[-1], seconds=fixed + budget, why=why)
    return TimePlan(False, 1, sides[-1], None, fixed + budget, why)


def _describe_least(measured: Measured, updates: int) -> str:
    """Returns which of both limits needs more time: ``updates``, or `_ENOUGH_EPOCHS`."""
    if updates > _ENOUGH_EPOCHS * measured.updates:
        return counted(updates, "update")
    return counted(_ENOUGH_EPOCHS, "epoch")


def smaller_sides(side: int) -> Iterator[int]:
    """Yields the sides in pixels of the images of other plans, in decreasing order.

    Args:
        side: Side of the images in the config.
    """
    previous = side
    for share in _SIDES:
        smaller = max(_SMALLEST_SIDE, round(side * share / _SIDE_STEP) * _SIDE_STEP)
        if smaller < previous:
            yield smaller
            previous = smaller


def _epoch_seconds(measured: Measured, scale: float) -> float:
    return (measured.epoch + measured.evaluation) * scale**2


def _epochs(measured: Measured, budget: float, scale: float) -> int:
    return max(0, min(MOST_EPOCHS, int(budget / max(_epoch_seconds(measured, scale), 1e-6))))


def _training(measured: Measured, each: int, side: int, epochs: int, why: str) -> TimePlan:
    seconds = epochs * _epoch_seconds(measured, each / side)
    seconds += measured.used + measured.build + measured.end
    return TimePlan(False, epochs, each, None, seconds, why)


def _heads(measured: Measured, side: int, scale: float, budget: float) -> Iterator[TimePlan]:
    """Yields a head with the default number of views, and one without random views.

    Args:
        measured: Figures of one epoch.
        side: Side of the images in pixels.
        scale: ``side`` divided by the measured side.
        budget: Number of seconds of the run.
    """
    for views in (LinearHead().count_views(measured.images), 0):
        rows = (1 + views) * measured.images
        features = (1 + views) * measured.features * scale**2
        fit = measured.fit * (rows / FIT_ROWS) ** FIT_EXPONENT
        seconds = features + fit + measured.evaluation * scale**2
        if features > _FEATURE_SHARE * budget:
            seconds = math.inf
        yield TimePlan(True, 1, side, views, seconds, "")
