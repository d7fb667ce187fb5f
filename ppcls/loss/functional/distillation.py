"""Implements losses of a model, the student, that learns from the logits of another model, in float32.

All losses have the arguments ``logits``, the student's logits, and ``other``, the other model's logits. Both
are [B, C] and have any floating dtype. ``label`` is [B] int64, or [B, C] float, of which the class with the
largest value is the label. The result is a float32 scalar, the mean over the batch. ``other`` gets no
gradient, except in `mutual_divergence`.
"""

from __future__ import annotations

from typing import Literal

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from ppcls.loss.functional.classification import cross_entropy


def soft_cross_entropy(logits: Tensor, other: Tensor, smoothing: float = 0.0) -> Tensor:
    """Returns the cross-entropy with the softmax of ``other`` as target, after label smoothing in [0, 1)."""
    with paddle.amp.auto_cast(enable=False):
        target = F.softmax(other.detach().astype("float32"))
    return cross_entropy(logits, target, smoothing)


def softened_divergence(logits: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Returns the Kullback-Leibler divergence between softened distributions (Hinton et al. 2015, section 2).

    The loss is ``T^2 * sum(q * (log q - log p))`` with ``p = softmax(logits / T)``,
    ``q = softmax(other / T)`` and the temperature ``T``. With the factor ``T^2``, the size of gradients does
    not depend on ``T``.
    """
    with paddle.amp.auto_cast(enable=False):
        student = _log_softmax(logits.astype("float32") / temperature)
        target = _log_softmax(other.detach().astype("float32") / temperature)
        return _divergence(target, student).mean() * temperature**2


def mutual_divergence(
    logits: Tensor,
    other: Tensor,
    act: Literal["softmax", "sigmoid"],
    weights: Tensor | None = None,
    times_classes: bool = False,
) -> Tensor:
    """Returns the mean of the divergences in both directions, ``sum((p - q) * (log p - log q)) / 2``.

    With this loss, both models learn from each other (Zhang et al. 2018, section 2.2). As in PaddleClas 2.6,
    one symmetric loss has gradients for both models.

    Args:
        logits: Logits of the student.
        other: Logits of the other model.
        act: Function that converts logits into the probabilities ``p`` and ``q``.
        weights: Weights of the classes in the sum, [B, C] float32; None for weights of 1.
        times_classes: Whether to multiply the sum by C.
    """
    with paddle.amp.auto_cast(enable=False):
        log = _log_softmax if act == "softmax" else F.log_sigmoid
        p = log(logits.astype("float32"))
        q = log(other.astype("float32"))
        # The mean of both divergences. It is never negative in floating point, as each factor has the sign of
        # the other.
        cost = (p.exp() - q.exp()) * (p - q) / 2.0
        cost = cost if weights is None else cost * weights
        return cost.sum(axis=-1).mean() * (cost.shape[-1] if times_classes else 1)


def decoupled_divergence(
    logits: Tensor, other: Tensor, label: Tensor, temperature: float, alpha: float, beta: float
) -> Tensor:
    """Returns the loss of decoupled knowledge distillation (Zhao et al. 2022, equation 7), times ``T^2``.

    The loss is ``alpha * KL(b || a) + beta * KL(q || p)``. The first divergence compares binary
    distributions: the class of the label against all other classes. The second one compares the softmax over
    the other classes. Logits are divided by the temperature ``T`` first. C must be > 1.
    """
    with paddle.amp.auto_cast(enable=False):
        is_label = _one_hot(label, logits.shape[-1]) > 0.5
        parts = [
            _decoupled(output.astype("float32") / temperature, is_label)
            for output in (logits, other.detach())
        ]
        (own_two, own_rest), (two, rest) = parts
        cost = alpha * _divergence(two, own_two) + beta * _divergence(rest, own_rest)
        return cost.mean() * temperature**2


def _decoupled(z: Tensor, is_label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logarithms of two distributions.

    The first is [B, 2]: the probabilities of the label's class and of all other classes. The second is [B,
    C]: the softmax over the other classes.
    """
    none = paddle.full_like(z, -1e4)  # probability 0, without an infinity that would make gradients NaN
    others = paddle.where(is_label, none, z)
    label = paddle.where(is_label, z, none).max(axis=-1, keepdim=True)
    two = _log_softmax(paddle.concat([label, others.logsumexp(axis=-1, keepdim=True)], axis=-1))
    return two, _log_softmax(others)


def weighted_soft_labels(logits: Tensor, other: Tensor, label: Tensor, temperature: float) -> Tensor:
    """Returns the cross-entropy with the other model's softened softmax, with a weight per image.

    The weight is ``1 - exp(-student / other)``, where ``student`` and ``other`` are the cross-entropies of
    the models with the label (Zhou et al. 2021, equation 8). So the student learns more from images that
    the other model predicts better. The weight gets no gradient. Logits are divided by the temperature, and
    the loss is multiplied by its square.
    """
    with paddle.amp.auto_cast(enable=False):
        student = logits.astype("float32")
        other = other.detach().astype("float32")
        is_label = _one_hot(label, student.shape[-1])
        costs = [-(is_label * _log_softmax(output)).sum(axis=-1) for output in (student.detach(), other)]
        # The cost of a teacher that is certain of the label may be 0.
        weight = 1.0 - (-costs[0] / (costs[1] + 1e-7)).exp()
        target = _log_softmax(other / temperature).exp()
        cost = -(target * _log_softmax(student / temperature)).sum(axis=-1)
        return (cost * weight).mean() * temperature**2


def spherical(
    logits: Tensor, other: Tensor, label: Tensor, temperature: float, length: float, share: float
) -> Tensor:
    """Returns the loss of spherical distillation (Guo et al. 2020, section 3.3), with normalized logits.

    The logits of each image are normalized to mean 0 and standard deviation ``length``. The loss is
    ``share * soft * T^2 + (1 - share) * hard`` with the temperature ``T``. ``soft`` is the cross-entropy with
    the other model's softened softmax, and ``hard`` is the cross-entropy with the label.
    """
    with paddle.amp.auto_cast(enable=False):
        student, other = (
            F.layer_norm(output.astype("float32"), output.shape[1:], epsilon=1e-7) * length
            for output in (logits, other.detach())
        )
        target = _log_softmax(other / temperature).exp()
        soft = -(target * _log_softmax(student / temperature)).sum(axis=-1) * temperature**2
        hard = -(_one_hot(label, student.shape[-1]) * _log_softmax(student)).sum(axis=-1)
        return (share * soft + (1.0 - share) * hard).mean()


def correlation_distance(logits: Tensor, other: Tensor, of_images: float, of_classes: float) -> Tensor:
    """Returns the loss of DIST, distillation from a stronger teacher (Huang et al. 2022, equations 7 to 9).

    A distance is one minus Pearson's correlation between the probabilities of both models. The loss is
    ``of_images`` times the mean distance over the classes of an image, plus ``of_classes`` times the mean
    distance over the images of a class, which a single image, such as the last one of an epoch, does not
    have.
    """
    with paddle.amp.auto_cast(enable=False):
        student, other = (_log_softmax(output.astype("float32")).exp() for output in (logits, other.detach()))
        loss = of_images * _uncorrelated(student, other, 1)
        return loss + of_classes * _uncorrelated(student, other, 0) if len(student) > 1 else loss


def _uncorrelated(student: Tensor, other: Tensor, axis: int) -> Tensor:
    student, other = (values - values.mean(axis=axis, keepdim=True) for values in (student, other))
    # Clips at a minimum, because the gradient of a square root is infinite at 0. The value is 0 if all
    # probabilities along the axis are equal.
    one, two = (values.square().sum(axis=axis).clip(min=1e-30).sqrt() for values in (student, other))
    return 1.0 - ((student * other).sum(axis=axis) / (one * two + 1e-8)).mean()


def _one_hot(label: Tensor, classes: int) -> Tensor:
    return F.one_hot(label.argmax(axis=-1) if label.ndim == 2 else label, classes)


def _log_softmax(z: Tensor) -> Tensor:
    """Returns the logarithm of the softmax. Results of Paddle's function on the CPU are never below -64."""
    z = z - z.detach().max(axis=-1, keepdim=True)
    return z - z.exp().sum(axis=-1, keepdim=True).log()


def _divergence(target: Tensor, student: Tensor) -> Tensor:
    """Returns the Kullback-Leibler divergence per image, [B], of logarithms of distributions, [B, C]."""
    return (target.exp() * (target - student)).sum(axis=-1)
