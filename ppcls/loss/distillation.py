"""Losses of a model that learns from another one's logits."""

from __future__ import annotations

from typing import Literal

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from ppcls.loss.ce import cross_entropy


def soft_cross_entropy(logits: Tensor, other: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy with the softmax of ``other``, which is taken as it is: no gradient reaches it.

    Args:
        logits: [B, C], any floating dtype.
        other: [B, C], the other model's logits.
        smoothing: Of its softmax, in [0, 1).

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        target = F.softmax(other.detach().astype("float32"))
    return cross_entropy(logits, target, smoothing)


def softened_divergence(logits: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence from the softened softmax of ``other`` (Hinton et al. 2015, section 2).

    ``T^2 * sum(q * (log q - log p))`` with ``p = softmax(logits / T)`` and ``q = softmax(other / T)``; the
    factor makes gradients as large as at ``T = 1``. No gradient reaches ``other``.

    Args:
        logits: [B, C], any floating dtype.
        other: [B, C], the other model's logits.
        temperature: T > 0.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        own = _log_softmax(logits.astype("float32") / temperature)
        target = _log_softmax(other.detach().astype("float32") / temperature)
        return _divergence(target, own).mean() * temperature**2


def mutual_divergence(
    logits: Tensor,
    other: Tensor,
    act: Literal["softmax", "sigmoid"],
    weights: Tensor | None = None,
    times_classes: bool = False,
) -> Tensor:
    """Half the divergence in each direction, ``(p - q) * (log p - log q) / 2`` added up over classes.

    Both models learn at once (Zhang et al. 2018, section 2.2), here by one symmetric loss whose gradient
    reaches both, as in PaddleClas 2.6.

    Args:
        logits: [B, C], any floating dtype.
        other: [B, C], the other model's logits.
        act: Of which probabilities.
        weights: [B, C] float32 of the classes' shares in the sum.
        times_classes: Whether the sum is multiplied by C.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        log = _log_softmax if act == "softmax" else F.log_sigmoid
        p, q = log(logits.astype("float32")), log(other.astype("float32"))
        cost = (p.exp() - q.exp()) * (p - q) / 2.0
        cost = cost if weights is None else cost * weights
        return cost.sum(axis=-1).mean() * (cost.shape[-1] if times_classes else 1)


def decoupled_divergence(
    logits: Tensor, other: Tensor, label: Tensor, temperature: float, alpha: float, beta: float
) -> Tensor:
    """Decoupled knowledge distillation (Zhao et al. 2022, equation 7), times the temperature squared.

    ``alpha * KL(b || a) + beta * KL(q || p)``: of binary distributions, the label's class against all others,
    and of the softmax over the others alone. No gradient reaches ``other``.

    Args:
        logits: [B, C], any floating dtype; C > 1.
        other: [B, C], the other model's logits.
        label: [B] int64, or [B, C] float, of which the largest is the label.
        temperature: Logits are divided by it.
        alpha: Weight of the first part.
        beta: Weight of the second.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        is_label = _one_hot(label, logits.shape[-1]) > 0.5
        parts = [
            _decoupled(each.astype("float32") / temperature, is_label) for each in (logits, other.detach())
        ]
        (own_two, own_rest), (two, rest) = parts
        cost = alpha * _divergence(two, own_two) + beta * _divergence(rest, own_rest)
        return cost.mean() * temperature**2


def _decoupled(z: Tensor, is_label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logarithms: of the label's class and all others, [B, 2]; of these among themselves, [B, C]."""
    none = paddle.full_like(z, -1e4)  # no share, and no infinity that gradients could not pass
    others = paddle.where(is_label, none, z)
    label = paddle.where(is_label, z, none).max(axis=-1, keepdim=True)
    two = _log_softmax(paddle.concat([label, others.logsumexp(axis=-1, keepdim=True)], axis=-1))
    return two, _log_softmax(others)


def weighted_soft_labels(logits: Tensor, other: Tensor, label: Tensor, temperature: float) -> Tensor:
    """Cross-entropy with the other's softened softmax, weighed image by image (Zhou et al. 2021, equation 8).

    An image's weight is ``1 - exp(-own / other)`` of both models' cross-entropies with the label: the worse
    the learner does, the more it learns from the other. No gradient reaches ``other`` or the weight.

    Args:
        logits: [B, C], any floating dtype.
        other: [B, C], the other model's logits.
        label: [B] int64, or [B, C] float, of which the largest is the label.
        temperature: Logits are divided by it; the loss is multiplied by its square.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        own, other = logits.astype("float32"), other.detach().astype("float32")
        is_label = _one_hot(label, own.shape[-1])
        costs = [-(is_label * _log_softmax(each)).sum(axis=-1) for each in (own.detach(), other)]
        weight = 1.0 - (-costs[0] / (costs[1] + 1e-7)).exp()
        target = _log_softmax(other / temperature).exp()
        cost = -(target * _log_softmax(own / temperature)).sum(axis=-1)
        return (cost * weight).mean() * temperature**2


def spherical(
    logits: Tensor, other: Tensor, label: Tensor, temperature: float, length: float, share: float
) -> Tensor:
    """Spherical knowledge distillation (Guo et al. 2020, section 3.3): how sure each model is does not count.

    Of logits brought to mean 0 and standard deviation ``length`` it is ``share`` times the cross-entropy with
    the other's softened softmax, and the rest that with the label. No gradient reaches ``other``.

    Args:
        logits: [B, C], any floating dtype.
        other: [B, C], the other model's logits.
        label: [B] int64, or [B, C] float, of which the largest is the label.
        temperature: Logits are divided by it; the first part is multiplied by its square.
        length: Of the logits, as the standard deviation over classes.
        share: In [0, 1].

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        own, other = (
            F.layer_norm(each.astype("float32"), each.shape[1:], epsilon=1e-7) * length
            for each in (logits, other.detach())
        )
        target = _log_softmax(other / temperature).exp()
        soft = -(target * _log_softmax(own / temperature)).sum(axis=-1) * temperature**2
        hard = -(_one_hot(label, own.shape[-1]) * _log_softmax(own)).sum(axis=-1)
        return (share * soft + (1.0 - share) * hard).mean()


def correlation_distance(logits: Tensor, other: Tensor, of_images: float, of_classes: float) -> Tensor:
    """Distillation from a stronger teacher, DIST (Huang et al. 2022, equations 7 to 9).

    One minus Pearson's correlation of both models' softmax: over the classes of each image, and over the
    images of each class. No gradient reaches ``other``.

    Args:
        logits: [B, C], any floating dtype.
        other: [B, C], the other model's logits.
        of_images: Weight of the mean over images.
        of_classes: Weight of the mean over classes.

    Returns:
        A float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        own, other = (_log_softmax(each.astype("float32")).exp() for each in (logits, other.detach()))
        return of_images * _uncorrelated(own, other, 1) + of_classes * _uncorrelated(own, other, 0)


def _uncorrelated(own: Tensor, other: Tensor, axis: int) -> Tensor:
    own, other = (each - each.mean(axis=axis, keepdim=True) for each in (own, other))
    # A root has no gradient at 0, where all images of a class, or all classes of an image, are alike.
    one, two = (each.square().sum(axis=axis).clip(min=1e-30).sqrt() for each in (own, other))
    return 1.0 - ((own * other).sum(axis=axis) / (one * two + 1e-8)).mean()


def _one_hot(label: Tensor, classes: int) -> Tensor:
    return F.one_hot(label.argmax(axis=-1) if label.ndim == 2 else label, classes)


def _log_softmax(z: Tensor) -> Tensor:
    """Not Paddle's, which on the CPU stops at -64."""
    z = z - z.detach().max(axis=-1, keepdim=True)
    return z - z.exp().sum(axis=-1, keepdim=True).log()


def _divergence(target: Tensor, own: Tensor) -> Tensor:
    """Maps logarithms of distributions, [B, C], to Kullback-Leibler divergences, [B]."""
    return (target.exp() * (target - own)).sum(axis=-1)
