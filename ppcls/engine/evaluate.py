"""Evaluation: exact counts over all ranks, whatever the batch size."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import nn

from ppcls.data.batch import Loader
from ppcls.engine.precision import FP32
from ppcls.loss.build import Criterion
from ppcls.metric.build import Metrics


@dataclass(frozen=True)
class Result:
    """One evaluation.

    Attributes:
        loss: Mean over ``images``.
        metrics: Name to share, 0..1.
        images: Evaluated over all ranks, each once.
        seconds: Time taken.
    """

    loss: float
    metrics: dict[str, float]
    images: int
    seconds: float


@paddle.no_grad()  # type: ignore[untyped-decorator]
def evaluate(
    model: nn.Layer, loader: Loader, criterion: Criterion, metrics: Metrics, precision: FP32, world: int
) -> Result:
    """Evaluates ``model`` on all that ``loader`` gives, once.

    Sums stay on the device; the host reads them once, after one reduction over the ranks.

    Args:
        model: The bare model; left in training mode if it was.
        loader: This rank's share.
        criterion: Logits and labels to mean loss.
        metrics: Counted over real samples.
        precision: Of the forward pass.
        world: Number of ranks.
    """
    began, training = time.perf_counter(), model.training
    model.eval()
    sums = paddle.zeros([2 + len(metrics.names)], dtype="float64")
    for batch in loader:
        if batch.valid == 0:
            continue
        with precision.evaluation():
            logits = model(batch.image)
        logits, label = logits[: batch.valid], batch.label[: batch.valid]
        loss = criterion(logits, label).astype("float64") * batch.valid
        images = paddle.full([1], batch.valid, dtype="float64")
        counts = metrics.counts(logits, label).astype("float64")
        sums = sums + paddle.concat([loss.reshape([1]), images, counts])
    if world > 1:
        paddle.distributed.all_reduce(sums)
    if training:
        model.train()
    loss, images, *counts = np.asarray(sums.numpy()).tolist()
    return Result(
        loss=loss / images,
        metrics={name: count / images for name, count in zip(metrics.names, counts, strict=True)},
        images=round(images),
        seconds=time.perf_counter() - began,
    )
