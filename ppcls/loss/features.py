"""Losses that compare the outputs of layers of two models."""

from __future__ import annotations

from typing import Literal

import paddle
from paddle import Tensor
from paddle.nn import functional as F

_LEAST = 1e-12
_ACTS = {"sigmoid": F.sigmoid, "softmax": F.softmax}


def distance(
    student: Tensor,
    other: Tensor,
    mode: Literal["l1", "l2", "smooth_l1"],
    act: Literal["sigmoid", "softmax"] | None = None,
) -> Tensor:
    """Returns the mean distance of two tensors of the same shape, a float32 scalar with gradients for both.

    Args:
        student: Output of the student, [B, ...], any floating dtype.
        other: Output of the other model, [B, ...].
        mode: Absolute, squared, or Huber's with a threshold of 1.
        act: Function applied to both first; softmax over the last axis.
    """
    measure = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}[mode]
    with paddle.amp.auto_cast(enable=False):
        student, other = student.astype("float32"), other.astype("float32")
        return measure(student, other) if act is None else measure(_ACTS[act](student), _ACTS[act](other))


def relational(student: Tensor, other: Tensor, side: int | None = None) -> Tensor:
    """Returns the loss of relational knowledge distillation (Park et al. 2019, equations 6 and 9).

    It is the sum of Huber's distances between both models' relations of the images in a batch: the distances
    of pairs, divided by their mean, and the cosines of the angles of triples. No gradient reaches ``other``.

    Args:
        student: Output of the student, [B, ...], any floating dtype; with ``side`` [B, C, H, W].
        other: Output of the other model, [B, ...], of any shape after B.
        side: Height and width that both are pooled to; None for no pooling.

    Returns:
        A float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        features = [feature.astype("float32") for feature in (student, other.detach())]
        if side is not None:
            features = [F.adaptive_avg_pool2d(feature, side) for feature in features]
        (far, angles), (far_of_other, angles_of_other) = (
            _relations(feature.flatten(1)) for feature in features
        )
        return F.smooth_l1_loss(far, far_of_other) + F.smooth_l1_loss(angles, angles_of_other)


def _relations(points: Tensor) -> tuple[Tensor, Tensor]:
    """Maps points [B, D] to distances over their mean, [B, B], and cosines at each point, [B, B, B].

    It uses products of two points only, so that the memory does not grow with B * B * D.
    """
    points = points - points.mean(axis=0)  # changes no result, and avoids cancellation
    products = points.matmul(points, transpose_y=True)
    square = products.diagonal()
    apart = 1.0 - paddle.eye(len(points))
    squares = (square.unsqueeze(1) + square.unsqueeze(0) - 2.0 * products) * apart
    far = squares.clip(min=_LEAST).sqrt()
    # At i: (j - i) . (k - i) = jk - ij - ik + ii
    at = products.unsqueeze(0) - products.unsqueeze(2) - products.unsqueeze(1) + square.reshape([-1, 1, 1])
    real = apart.unsqueeze(2) * apart.unsqueeze(1)
    cosines = at * real / (far.unsqueeze(2) * far.unsqueeze(1))
    # Clipped for images at the same point, whose angles are only rounding errors.
    return far / (far.mean() + _LEAST), cosines.clip(-1.0, 1.0)
