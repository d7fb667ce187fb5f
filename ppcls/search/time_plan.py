"""Plans a run that ends within a given time: ``ppcls train --time 10m``.

A dry run in a child process measures the speed. The plan is a pure function of its figures.

Decisions:

- The plan keeps the size of the images if at least `_ENOUGH_EPOCHS` epochs fit, because smaller images cost
  accuracy, and then tries smaller images.
- A head is planned if it is expected to be better (see `ppcls.engine.head.expectation`), or if too few epochs
  of fine-tuning fit.
- The time of the measurement counts. The start of the run is assumed to take as long as that of the
  measurement. A fifth of the rest is a reserve, because other programs may slow down the machine later.
- The plan is a forecast, so the run also gets a limit, ``Global.time_limit``: it ends after the epoch after
  which another one would be late.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ppcls.engine.head.expectation import FEW
from ppcls.engine.head.section import LinearHead
from ppcls.errors import UserError, child_error, counted
from ppcls.search.trials import last_lines, start_training

_MEASURE_SHARE = 0.7  # of the time, after which the measurement is stopped
_RESERVE = 0.2  # share of the remaining time
_ENOUGH_EPOCHS = 10
_MOST_EPOCHS = 100
_FORWARD = 1 / 3  # duration of a forward pass divided by that of a training step
_SIDES = (0.75, 0.5)  # further sides of the images, relative to the measured one
_SIDE_STEP = 32
_SMALLEST_SIDE = 64
_FIT_SECONDS = (5.0, 0.01)  # duration of fitting a head: at least, and per row of features
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_END_SECONDS = (10.0, 0.1)  # for the report at the end of a run: at least, and as a share of the time


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
    """What a dry run of one epoch measured.

    Attributes:
        images: Number of training images.
        epoch: Seconds of training per epoch.
        evaluation: Seconds per evaluation.
        pretrained: Whether the run starts from pretrained weights.
        seconds: Duration of the dry run.
        start: Seconds from the start of the program to the first update.
    """

    images: int
    epoch: float
    evaluation: float
    pretrained: bool
    seconds: float = 0.0
    start: float = 0.0


@dataclass(frozen=True)
class TimePlan:
    """A run that ends in time.

    Attributes:
        head: Whether only a head is fitted.
        epochs: Number of epochs.
        side: Side of the images in pixels.
        views: Random views per image for a head; None for the default.
        seconds: Expected duration, with the start.
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
        return f"plan: {what} with {size}, about {self.seconds:.0f} s, because {self.why}"


def plan_run(measured: Measured, seconds: float, classes: int, side: int, *, resizable: bool) -> TimePlan:
    """Returns the run that is expected to be best among those that end in time.

    Args:
        measured: Figures of one epoch with images of ``side``.
        seconds: Time that is left, in seconds.
        classes: Number of classes.
        side: Side of the measured images in pixels.
        resizable: Whether the model and the config accept smaller images.

    Raises:
        UserError: No run ends in time.
    """
    start = measured.start
    budget = (seconds - start) * (1 - _RESERVE)
    sides = [side, *_smaller_sides(side)] if resizable else [side]
    few = measured.images < FEW * max(classes, 1)
    heads = [plan for each in sides for plan in _heads(measured, each, each / side)]
    heads = heads if measured.pretrained else []
    heads = [replace(plan, seconds=plan.seconds + start) for plan in heads if plan.seconds <= budget]
    if heads and few:
        return replace(heads[0], why=f"there are fewer than {FEW} training images per class")
    fitting = [(each, _epochs(measured, budget, each / side)) for each in sides]
    for each, epochs in fitting:
        if epochs >= _ENOUGH_EPOCHS:
            why = (
                "the time suffices"
                if each == side
                else f"larger images allow fewer than {_ENOUGH_EPOCHS} epochs"
            )
            return _training(measured, each, side, epochs, why)
    if heads:
        return replace(heads[0], why=f"fewer than {_ENOUGH_EPOCHS} epochs of fine-tuning fit")
    each, epochs = fitting[-1]
    if epochs:
        return _training(measured, each, side, epochs, f"only {counted(epochs, 'epoch fits', 'epochs fit')}")
    needed = start + _epoch_seconds(measured, each / side) / (1 - _RESERVE)
    raise UserError(
        f"--time: one epoch with {each} x {each} pixels does not fit into the {seconds:.0f} s that are left "
        f"after the measurement; expected at least {needed:.0f} s; choose more time, a smaller --model, or "
        "fewer images"
    )


def _smaller_sides(side: int) -> Iterator[int]:
    previous = side
    for share in _SIDES:
        smaller = max(_SMALLEST_SIDE, round(side * share / _SIDE_STEP) * _SIDE_STEP)
        if smaller < previous:
            yield smaller
            previous = smaller


def _epoch_seconds(measured: Measured, scale: float) -> float:
    return (measured.epoch + measured.evaluation) * scale**2


def _epochs(measured: Measured, budget: float, scale: float) -> int:
    return max(0, min(_MOST_EPOCHS, int(budget / max(_epoch_seconds(measured, scale), 1e-6))))


def _training(measured: Measured, each: int, side: int, epochs: int, why: str) -> TimePlan:
    seconds = measured.start + epochs * _epoch_seconds(measured, each / side)
    return TimePlan(False, epochs, each, None, seconds, why)


def _heads(measured: Measured, side: int, scale: float) -> Iterator[TimePlan]:
    """Yields a head with the default number of views, and one without random views.

    Args:
        measured: Figures of one epoch.
        side: Side of the images in pixels.
        scale: ``side`` divided by the measured side.
    """
    least, per_row = _FIT_SECONDS
    for views in (LinearHead().count_views(measured.images), 0):
        rows = (1 + views) * measured.images
        features = (1 + views) * measured.epoch * _FORWARD
        seconds = (features + measured.evaluation) * scale**2 + least + per_row * rows
        yield TimePlan(True, 1, side, views, seconds, "")


def time_limit(seconds: float) -> float:
    """Returns the value of ``Global.time_limit`` for a process that must end within ``seconds``."""
    least, share = _END_SECONDS
    return max(1.0, seconds - max(least, share * seconds))


def read_measured(text: str, seconds: float) -> Measured:
    """Returns the figures of a dry run of one epoch.

    Args:
        text: Content of the file that ``--figures`` names; see `ppcls.engine.dry_run.DryRun.as_json`.
        seconds: Duration of the dry run.
    """
    figures = json.loads(text)
    return Measured(
        figures["images"],
        figures["training"],
        figures["evaluation"],
        figures["pretrained"],
        seconds,
        figures["start"],
    )


def measure(config: Path, seconds: float) -> Measured:
    """Returns the figures of a dry run of one epoch in a child process.

    Args:
        config: Config file of the run, in a temporary folder to which the log is written.
        seconds: Duration of the measurement and the run. The measurement may take a part of it.

    Raises:
        UserError: The dry run fails, or takes too long.
    """
    import subprocess
    import time

    log = config.with_name("measure.log")
    start = time.monotonic()
    file = config.with_name("figures.json")
    options = ["--dry-run", "--figures", str(file)]
    with start_training(config, ["Global.epochs=1"], log, options) as process:
        try:
            code = process.wait(_MEASURE_SHARE * seconds)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"--time: the measurement did not end within {_MEASURE_SHARE * seconds:.0f} s; choose more "
                "time or a smaller --model"
            ) from None
    if code:
        raise child_error(code, f"--time: the measurement failed: {last_lines(log)}")
    return read_measured(file.read_text(encoding="utf-8"), time.monotonic() - start)
