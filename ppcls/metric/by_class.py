"""Who was taken for whom, counted; and what follows from it for each class."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

Floats = NDArray[np.float64]


def right_of_class(logits: Tensor, label: Tensor) -> Tensor:
    """Counts images and right predictions by class; ties fall as in `paddle.topk`.

    Args:
        logits: [B, C], any floating dtype.
        label: [B] int64, 0..C-1; or [B, C] float, each row's share of every class: the largest is the label.

    Returns:
        [2 * C] int64, on the device of ``logits``: right ones, then all.
    """
    label, predicted = _labels(logits, label)
    classes = logits.shape[-1]
    right = paddle.where(predicted == label, label, paddle.full_like(label, classes))
    return paddle.concat(
        [paddle.bincount(each, minlength=classes + 1)[:classes] for each in (right, label)]
    ).astype("int64")


def confusion(logits: Tensor, label: Tensor) -> Tensor:
    """Counts how often each class is taken for each: [C * C] int64, by label first; see `right_of_class`."""
    label, predicted = _labels(logits, label)
    classes = logits.shape[-1]
    # Logits that are not finite may have no highest: such rows are of no predicted class.
    known = (predicted >= 0) & (predicted < classes)
    place = paddle.where(known, label * classes + predicted, paddle.full_like(label, classes**2))
    return paddle.bincount(place, minlength=classes**2 + 1)[: classes**2].astype("int64")


def _labels(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    if label.ndim == 2:
        label = label.argmax(axis=-1)
    return label, paddle.topk(logits.astype("float32"), 1, axis=-1)[1].squeeze(-1)


def recalls(counts: Floats) -> Floats:
    """Maps what `right_of_class` counted, [2 * C], to recalls [C]; NaN for a class without images."""
    right, images = counts.reshape(2, -1)
    found: Floats = np.divide(right, images, out=np.full(len(images), np.nan), where=images > 0)
    return found


def macro_averages(counts: Floats) -> list[float]:
    """Maps what `confusion` counted, [C * C], to precision, recall and F1, means over classes.

    A class that neither occurs nor is predicted does not count; a quotient by 0 is 0.
    """
    classes = round(len(counts) ** 0.5)
    matrix = counts.reshape(classes, classes)
    right, images, predictions = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    there = images + predictions > 0
    shares = [(right, predictions), (right, images), (2 * right, images + predictions)]
    return [float(_quotient(above[there], below[there]).mean()) for above, below in shares]


def _quotient(above: Floats, below: Floats) -> Floats:
    found: Floats = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
    return found
