"""Implements losses that compare the outputs of layers of two models."""

from __future__ import annotations

from typing import Literal

import paddle
from paddle import Tensor
from paddle.nn import functional as F

_LEAST = 1e-12  # keeps roots and quotients differentiable where two images have the same features
_ACTS = {"sigmoid": F.sigmoid, "softmax": F.softmax}


def distance(
    student: Tensor,
    other: Tensor,
    mode: Literal["l1", "l2", "smooth_l1"],
    act: Literal["sigmoid", "softmax"] | None = None,
) -> Tensor:
    """Returns the mean distance between two tensors of the same shape. Both tensors get gradients.

    Args:
        student: Output of the student, [B, ...], any floating dtype.
        other: Output of the other model, [B, ...], any floating dtype.
        mode: ``l1`` for absolute, ``l2`` for squared differences; ``smooth_l1`` for the Huber loss with a
            threshold of 1.
        act: Function that is applied to both tensors first; None for no function. The softmax is over the
            last axis.

    Returns:
        Float32 scalar.
    """
    measure = {"l1": F.l1_loss, "l2": F.mse_loss, "smooth_l1": F.smooth_l1_loss}[mode]
    with paddle.amp.auto_cast(enable=False):
        student = student.astype("float32")
        other = other.astype("float32")
        return measure(student, other) if act is None else measure(_ACTS[act](student), _ACTS[act](other))


def relational(student: Tensor, other: Tensor, side: int | None = None) -> Tensor:
    """Returns the loss of relational knowledge distillation (Park et al. 2019, equations 6 and 9).

    The relations of a model are the distances of all pairs of images in the batch, divided by their mean, and
    the cosines of the angles of all triples. The loss is the Huber loss between the distances of both models,
    plus the Huber loss between their cosines. ``other`` gets no gradient.

    Args:
        student: Output of the student, any floating dtype, [B, ...]; [B, C, H, W] if ``side`` is set.
        other: Output of the other model. The shape after B may differ.
        side: Height and width to which both outputs are pooled; None for no pooling.

    Returns:
        Float32 scalar.
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
    """Computes the relations of points [B, D].

    Uses only products of two points, so that the memory does not grow with B * B * D.

    Returns:
        Distances divided by their mean, [B, B]; and cosines of the angles at each point, [B, B, B].
    """
    points = points - points.mean(axis=0)  # does not change the relations, and avoids cancellation
    products = points.matmul(points, transpose_y=True)
    square = products.diagonal()
    apart = 1.0 - paddle.eye(len(points))
    squares = (square.unsqueeze(1) + square.unsqueeze(0) - 2.0 * products) * apart
    far = squares.clip(min=_LEAST).sqrt()
    # The product at point i is (j - i) . (k - i) = jk - ij - ik + ii.
    at = products.unsqueeze(0) - products.unsqueeze(2) - products.unsqueeze(1) + square.reshape([-1, 1, 1])
    real = apart.unsqueeze(2) * apart.unsqueeze(1)
    cosines = at * real / (far.unsqueeze(2) * far.unsqueeze(1))
    # Clips the cosines, because rounding errors are large for images with equal points.
    return far / (far.mean() + _LEAST), cosines.clip(-1.0, 1.0)
