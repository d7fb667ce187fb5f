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
        label = label.argmax(axis=-1) if label.ndim == 2 else label
        is_label = F.one_hot(label, logits.shape[-1]) > 0.5
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


def _log_softmax(z: Tensor) -> Tensor:
    """Not Paddle's, which on the CPU stops at -64."""
    z = z - z.detach().max(axis=-1, keepdim=True)
    return z - z.exp().sum(axis=-1, keepdim=True).log()


def _divergence(target: Tensor, own: Tensor) -> Tensor:
    """Maps logarithms of distributions, [B, C], to Kullback-Leibler divergences, [B]."""
    return (target.exp() * (target - own)).sum(axis=-1)
