"""Measures how fast a run trains, evaluates, computes features and fits a head, for ``ppcls train --time``.

Decisions:

- The measurement is part of the process that trains afterwards. Importing Paddle takes seconds, which a
  measurement in a child process would need twice.
- It takes a small share of the given time, but at least two batches of an evaluation and two updates. Updates
  are not measured if computing features already takes so long that a head will be planned. If the start took
  a large part of the time, a head is planned without further measurements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from ppcls.data.loaders.batch import Batch, endless
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.evaluation.evaluate import Evaluator
from ppcls.engine.head.expectation import ENOUGH_UPDATES, FIT_ROWS, FIT_SECONDS
from ppcls.engine.head.features import FeatureModel
from ppcls.engine.head.solve import HeadSamples, fit_head
from ppcls.engine.health.time_limit import TimeLimit
from ppcls.engine.loop import Run
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime
from ppcls.search.time_plan import Measured

_SHARE = 0.06  # of the time, for the updates, and as much for the evaluation
_MOST_SECONDS = 20.0
_HURRIED_SHARE = 0.4  # of the time, after which nothing more is measured
_MOST_SHARE = 0.9  # of the time, for the start
_TRAINING = 2.5  # duration of training per image, compared with computing features; 3 is usual
_MOST_BATCHES = 8  # of an evaluation
_LATER_BATCH = 0.5  # duration of a batch, divided by that of the first one, which starts the loader
_FOLDS = 5


def measure_speed(build: Callable[[], Run], classes: int, seconds: float, smallest: float) -> Measured:
    """Returns the figures of a run, without writing its files.

    Args:
        build: Function that builds the run.
        classes: Number of classes.
        seconds: Duration that the user asked for, of which the measurement takes a small share.
        smallest: Smallest side of the images of a plan, divided by their side in this run.

    Raises:
        UserError: Training would fail as well, for example because of a bad image; or the start took too
            long.
    """
    clock = TimeLimit.of_run(seconds, Runtime(), 0)
    before = clock.age
    run = build()
    built = clock.age - before
    try:
        if clock.age > _MOST_SHARE * seconds:
            raise UserError(
                f"--time: the start took {clock.age:.0f} s of {seconds:.0f} s; choose more time or a smaller "
                "--model, or end other programs"
            )
        share = min(_SHARE * seconds, _MOST_SECONDS)
        images = len(run.state.loader.index)
        evaluation, features = 0.0, 0.0
        if run.evaluator is not None:
            evaluation = _time_evaluation(run, run.evaluator, share)
            evaluated = sum(len(loader.index) for loader in run.evaluator.loaders.values())
            features = evaluation / max(1, evaluated) * images
        width = _feature_width(run) if run.pretrained and run.evaluator is not None else None
        clock.begin()
        hurried = clock.age > _HURRIED_SHARE * seconds
        fit = 0.0
        if width is not None:
            fit = FIT_SECONDS * clock.slowdown if hurried else _time_fit(width, classes)
        updates = run.state.updates_per_epoch
        # Training takes longer than computing features, so its measurement would not change the plan.
        shortest = ENOUGH_UPDATES / updates * _TRAINING * features * smallest**2
        skipped = width is not None and (hurried or shortest > clock.left)
        epoch = math.inf if skipped else _time_epoch(run, share)
    finally:
        run.release()
    clock.begin()
    return Measured(
        images,
        epoch,
        updates,
        evaluation,
        features,
        fit,
        can_fit=width is not None,
        end=clock.end,
        build=built,
        used=clock.age,
    )


def _time_evaluation(run: Run, evaluator: Evaluator, seconds: float) -> float:
    """Returns the estimated seconds of an evaluation."""
    model = run.state.model
    total = sum(map(len, evaluator.loaders.values()))
    batches = chain.from_iterable(evaluator.loaders.values())
    first: float = evaluator.evaluate(model, islice(batches, 1)).seconds
    rest = total - 1
    if not rest:
        return first
    if first > seconds:
        return first + rest * _LATER_BATCH * first
    count = min(rest, _MOST_BATCHES, max(1, int(seconds / max(first, 1e-6))))
    each: float = evaluator.evaluate(model, islice(batches, count)).seconds / count
    return min(first, 2 * each) + rest * each  # the first one includes the start of the loader


def _time_epoch(run: Run, seconds: float) -> float:
    """Returns the estimated seconds of an epoch of training."""
    run.state.network.train()
    batches = endless(run.state.loader)
    _update(run, batches)
    updates = 0
    start = time.perf_counter()
    while updates < 1 or time.perf_counter() - start < seconds:
        _update(run, batches)
        updates += 1
    return (time.perf_counter() - start) / updates * run.state.updates_per_epoch


def _update(run: Run, batches: Iterator[Batch]) -> None:
    """Trains one update on full batches."""
    accumulate = run.state.loader.order.accumulate
    for number in range(1, accumulate + 1):
        batch = next(batches)
        full = replace(batch, update=number == accumulate, valid=len(batch.image), weight=1 / accumulate)
        run.step(run.state, full, NO_HOOKS)
    run.state.runtime.synchronize()


def _feature_width(run: Run) -> int | None:
    """Returns the number of features of an image; None if the model can't have a linear head."""
    try:
        layers = FeatureModel(run.state.model, run.state.precision).layers
    except UserError:
        return None
    return sum(int(layer.weight.shape[0]) for layer in layers.values())


def _time_fit(width: int, classes: int) -> float:
    """Returns the seconds of fitting a head on `FIT_ROWS` rows of random features with some structure."""
    rng = np.random.default_rng(0)
    labels = np.arange(FIT_ROWS) % min(classes, FIT_ROWS // 2)
    centres = rng.standard_normal((classes, width), dtype=np.float32)
    features = centres[labels] + 4 * rng.standard_normal((FIT_ROWS, width), dtype=np.float32)
    images = np.arange(FIT_ROWS)
    plain = np.ones(FIT_ROWS, np.bool_)
    few = HeadSamples(features[:8], images[:8], plain[:8], labels[:8], classes)
    fit_head(few, 2, 0)  # imports the libraries
    start = time.perf_counter()
    fit_head(HeadSamples(features, images, plain, labels, classes), _FOLDS, 0)
    return time.perf_counter() - start
