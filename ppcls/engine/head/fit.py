"""The epoch of a run with a linear head: it computes features, and fits the last layer of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.arch.section import Arch
from ppcls.data.section import Split
from ppcls.engine.head.cache import hash_contents
from ppcls.engine.head.expectation import FIT_EXPONENT, FIT_ROWS, FIT_SECONDS
from ppcls.engine.head.features import FeatureModel, ImageSource, compute_features
from ppcls.engine.head.solve import HeadFit, HeadSamples, LinearModel, fit_head
from ppcls.errors import SignalExit, UserError, counted
from ppcls.report.record import StepPosition, StepRecord
from ppcls.weights.store import LATEST

if TYPE_CHECKING:  # only for annotations
    from ppcls.engine.health.non_finite import NonFiniteMonitor
    from ppcls.engine.health.requests import SaveStopRequests
    from ppcls.engine.loop import Run

Floats = NDArray[np.float32]
_FIT_MARGIN = 3.0  # duration of a fit that is kept free, divided by the expected duration
_LEAST_FEATURES = 0.1  # of the limit, whatever the end of the run is expected to take
_LEAST_FIT = 0.05
_TOLERANCE = 1e-2  # difference between the model's logits and the head's, relative to the largest logit


def fit_head_epoch(run: Run, requests: SaveStopRequests, monitor: NonFiniteMonitor) -> None:  # noqa: ARG001
    """Fits the last layer of the model on the features of all training images.

    This is the whole epoch of a run with the section ``LinearHead``. It has the signature of
    `ppcls.engine.loop.train_epoch`.

    Raises:
        UserError: The run has several processes or a moving average, the model does not end with a linear
            layer, or no image can be read.
        SignalExit: A signal stopped the run. The features that were computed are in the cache.
    """
    state = run.state
    config = state.config
    section = config.LinearHead
    assert section is not None
    _check(run)
    start = time.monotonic()
    train = config.DataLoader.need_train()
    index = state.loader.index
    model = FeatureModel(state.model, state.precision)
    limit = run.limit
    views = section.count_views(len(index))
    fit_seconds = FIT_SECONDS * ((1 + views) * len(index) / FIT_ROWS) ** FIT_EXPONENT
    left = limit.begin_part(_FIT_MARGIN * fit_seconds * limit.slowdown, _LEAST_FEATURES)
    assert isinstance(config.Arch, Arch)  # by the rules of LinearHead
    centred = _with_eval_transforms(train, config.DataLoader.evaluated)
    limited = limit.seconds is not None
    plain = ImageSource(centred, index, state.runtime, config.Global, config.Arch, limited)
    random = ImageSource(train, index, state.runtime, config.Global, config.Arch, limited)
    total = (1 + views) * len(index)
    rows = train.sampler.rows(1)
    finished = 0

    def after_batch(images: int) -> bool:
        nonlocal finished
        finished += images
        state.runtime.progress.mark_first_step()
        state.runtime.progress.report(f"features of {finished} of {counted(total, 'image')}")
        done = math.ceil(min(finished, total) / rows)
        run.reporter.advance(StepPosition(1, 1, done, math.ceil(total / rows), images, limit.left))
        if images <= rows:  # otherwise, they come from the cache
            limit.measure(images)
        requests.check()
        return left() >= 0

    hashes = hash_contents(index) if section.cache else {}
    features: list[Floats] = []
    computed = 0
    begin = 0.0
    limit.begin()
    try:
        for view in range(1 + views):
            duration, begin = limit.age - begin, limit.age
            if view and left() < duration:
                break  # a whole view does not fit
            source = plain if view == 0 else random
            result = compute_features(
                source,
                model,
                view,
                cached=section.cache,
                hashes=hashes,
                after_batch=after_batch,
            )
            features.append(result.rows)
            computed += result.computed
    except SignalExit:
        run.save([LATEST])  # so that the run can be resumed, with the features in the cache
        raise
    seconds = time.monotonic() - start
    run.log(
        f"linear head: features [{features[0].shape[1]}] of {counted(len(index), 'image')} in "
        f"{counted(len(features), 'view')}, {computed:,} computed and {finished - computed:,} from the "
        f"cache, in {seconds:.1f} s"
    )
    if finished < total:
        run.log(
            f"linear head: features of {finished:,} of {counted(total, 'view')} are used, because all "
            f"of them would not end within {limit.seconds:g} s (Global.time_limit)"
        )
    samples = join_views(features, index.labels, config.Arch.class_num)
    start = time.monotonic()
    left = limit.begin_part(0.0, _LEAST_FIT)
    fitted = fit_head(samples, section.folds, config.Global.seed, requests.check, left)
    run.log(_describe(fitted, time.monotonic() - start))
    if not fitted.complete:
        run.log(f"linear head: the fit ended early, to end within {limit.seconds:g} s (Global.time_limit)")
    _store(model, fitted.model)
    _check_logits(plain, model, fitted.model, features[0])
    state.loader.load_state_dict({**state.loader.state_dict(), "epoch": state.epoch + 1, "step": 0})
    run.reporter.record(_record(run, fitted.model, samples, finished / max(seconds, 1e-6)))


def join_views(features: list[Floats], labels: NDArray[np.int64], classes: int) -> HeadSamples:
    """Joins the features of several views, of which the first one has no random transforms.

    Args:
        features: Features of each view, [N, D] each; NaN for images that were skipped.
        labels: Labels of the images, [N] or [N, classes].
        classes: Number of classes.
    """
    rows = [np.flatnonzero(np.isfinite(view).all(axis=1)) for view in features]
    return HeadSamples(
        np.concatenate([view[each] for view, each in zip(features, rows, strict=True)]),
        np.concatenate(rows),
        np.repeat([number == 0 for number in range(len(rows))], [len(each) for each in rows]),
        labels,
        classes,
    )


def _check(run: Run) -> None:
    if run.state.runtime.world_size > 1:
        raise UserError(
            f"LinearHead: expected one process, found {run.state.runtime.world_size}; start the run without "
            "paddle.distributed.launch"
        )
    if run.state.ema is not None:
        raise UserError("LinearHead: a head is fitted once, so it has no moving average; remove EMA")


def _with_eval_transforms(train: Split, evaluated: Mapping[str, Split]) -> Split:
    """Returns the training data with the transforms of the evaluation data, which are not random.

    Raises:
        UserError: There is no evaluation data.
    """
    if (split := evaluated.get("Eval")) is None:
        raise UserError(
            "LinearHead: needs the transforms in DataLoader.Eval.dataset.transform_ops for the features "
            "of the training images; add DataLoader.Eval"
        )
    dataset = train.dataset.model_copy(update={"transform_ops": split.dataset.transform_ops})
    return train.model_copy(update={"dataset": dataset})


def _describe(fitted: HeadFit, seconds: float) -> str:
    if not fitted.losses and not fitted.complete:
        return (
            f"linear head: fitted in {seconds:.1f} s with C {fitted.strength:g}; the time did not suffice "
            "for cross-validation"
        )
    if not fitted.losses:
        return (
            f"linear head: fitted in {seconds:.1f} s with C {fitted.strength:g}; no class has two images, so "
            "cross-validation was not possible"
        )
    losses = ", ".join(f"{strength:g}: {loss:.3f}" for strength, loss in fitted.losses.items())
    return (
        f"linear head: fitted in {seconds:.1f} s with C {fitted.strength:g}, which has the lowest "
        f"cross-validated loss ({losses})"
    )


def _store(model: FeatureModel, head: LinearModel) -> None:
    """Writes a head into the last layers of the model.

    If there are two layers, the model returns the mean of their logits, and each layer gets its part of the
    weights, times two.
    """
    count = len(model.layers)
    parts = np.split(head.weight * count, count)
    for layer, weight in zip(model.layers.values(), parts, strict=True):
        bias = head.bias
        if layer.bias is None:
            raise UserError("a linear head needs a last layer with a bias; choose another architecture")
        layer.weight.set_value(paddle.to_tensor(weight).astype(layer.weight.dtype))
        layer.bias.set_value(paddle.to_tensor(bias).astype(layer.bias.dtype))


def _check_logits(source: ImageSource, model: FeatureModel, head: LinearModel, features: Floats) -> None:
    """Checks on one batch that the model returns the logits of the head.

    Raises:
        UserError: The model changes its logits after the last linear layer.
    """
    valid = np.flatnonzero(np.isfinite(features).all(axis=1))[: source.split.sampler.rows(1)]
    loader = source.loader(valid.tolist(), 0)
    training = model.model.training
    model.model.eval()
    try:
        batch = next(iter(loader))
        with paddle.no_grad(), model.precision.evaluation():
            logits = model.model(model.precision.images(batch.image, training=False))
        rows = logits[: batch.valid].astype("float32").numpy()
    finally:
        loader.release()
        if training:
            model.model.train()
    assert batch.positions is not None
    expected = head.logits(features[batch.positions[: batch.valid]])
    difference = float(np.abs(rows - expected).max() / max(1.0, np.abs(expected).max()))
    tolerance = _TOLERANCE if model.precision.name == "float32" else 10 * _TOLERANCE
    if not difference <= tolerance:
        raise UserError(
            "a linear head needs a model that returns the logits of its last linear layer, but those of this "
            f"model differ by {difference:.2g} of the largest logit; choose another architecture, or train "
            "without --head"
        )


def _record(run: Run, head: LinearModel, samples: HeadSamples, speed: float) -> StepRecord:
    """Returns the record of the epoch: loss and metrics of the training images without random transforms."""
    state = run.state
    rows = samples.select(np.ones(len(samples.labels), np.bool_), plain=True)
    logits = paddle.to_tensor(head.logits(rows.features))
    labels = paddle.to_tensor(rows.targets)
    with paddle.no_grad():
        loss = float(state.criterion(logits, labels))
        metrics: dict[str, float] = {}
        if state.metrics is not None and not state.metrics.gathered:
            counts = state.metrics.counts(logits, labels).astype("float64").numpy()
            metrics = state.metrics.values(counts, len(labels))
    return StepRecord(
        epoch=1,
        epochs=1,
        step=1,
        steps_per_epoch=1,
        update=state.update,
        loss=loss if math.isfinite(loss) else math.nan,
        metrics=metrics,
        learning_rate=0.0,
        images_per_second=speed,
        data_wait=0.0,
        eta_seconds=0.0,
        images=len(labels),
    )
