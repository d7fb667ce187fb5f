"""Measures how fast a run trains, evaluates, computes features and fits a head, for ``ppcls train --time``.

Decisions:

- The measurement is part of the process that trains afterwards. Importing Paddle takes seconds, which a
  measurement in a child process would need twice.
- It takes a small share of the given time, but at least two updates and two batches of an evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import psutil

from ppcls.data.loaders.batch import Batch, endless
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.evaluation.evaluate import Evaluator
from ppcls.engine.head.features import FeatureModel
from ppcls.engine.head.solve import HeadSamples, fit_head
from ppcls.engine.loop import Run
from ppcls.errors import UserError
from ppcls.search.time_plan import FIT_ROWS, Measured

_SHARE = 0.06  # of the time, for the updates, and as much for the evaluation
_MOST_SECONDS = 20.0
_MOST_SHARE = 0.7  # of the time, for the start and the measurement
_MOST_BATCHES = 8  # of an evaluation
_FOLDS = 5


def measure_speed(build: Callable[[], Run], classes: int, seconds: float) -> Measured:
    """Returns the figures of a run, without writing its files.

    Args:
        build: Function that builds the run.
        classes: Number of classes.
        seconds: Duration that the user asked for, of which the measurement takes a small share.

    Raises:
        UserError: Training would fail as well, for example because of a bad image; or the measurement takes
            too long.
    """
    before = _age()
    run = build()
    start = _age()
    try:
        _check_age(seconds)
        share = min(_SHARE * seconds, _MOST_SECONDS)
        images = len(run.state.loader.index)
        evaluation, features = 0.0, 0.0
        if run.evaluator is not None:
            evaluation = _time_evaluation(run, run.evaluator, share)
            evaluated = sum(len(loader.index) for loader in run.evaluator.loaders.values())
            features = evaluation / max(1, evaluated) * images
            _check_age(seconds)
        width = _feature_width(run) if run.pretrained and run.evaluator is not None else None
        fit = _time_fit(width, classes) if width is not None else 0.0
        _check_age(seconds)
        epoch = _time_epoch(run, share)
    finally:
        run.release()
    return Measured(
        images,
        epoch,
        run.state.updates_per_epoch,
        evaluation,
        features,
        fit,
        can_fit=width is not None,
        start=start,
        build=start - before,
        used=_age(),
    )


def _age() -> float:
    """Returns the number of seconds since the start of the process."""
    age: float = time.time() - psutil.Process().create_time()
    return age


def _check_age(seconds: float) -> None:
    age = _age()
    if age > _MOST_SHARE * seconds:
        raise UserError(
            f"--time: the start and the measurement took {age:.0f} s of {seconds:.0f} s, and had not ended; "
            "choose more time or a smaller --model, or end other programs"
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
