"""Implements losses of embeddings whose signs are used as hash codes."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional as F

_EXPONENT = 50.0  # maximum of half the inner product of two embeddings


def _same_identity(label: Tensor) -> Tensor:
    """Returns 1 for pairs of rows with the same identity and 0 for other pairs, [B, B] float32."""
    return (label.unsqueeze(1) == label.unsqueeze(0)).astype("float32")


def cauchy_hashing(features: Tensor, label: Tensor, gamma: float, quantization: float) -> Tensor:
    """Returns the loss of Deep Cauchy Hashing (Cao et al. 2018, equations 7 to 9).

    Args:
        features: Embeddings, [B, D], any floating dtype.
        label: Identities, [B] int64.
        gamma: Scale of the Cauchy distribution.
        quantization: Weight of the quantization loss.

    Returns:
        Float32 scalar, the mean over all pairs.
    """
    with paddle.amp.auto_cast(enable=False):
        z = features.astype("float32")
        same = _same_identity(label)
        share = same.mean()  # at least 1 / B
        # Both kinds of pairs get the same total weight. If all rows have one identity, all weights are 1.
        weight = same / share + (1.0 - same) / (1.0 - share).clip(min=1e-6)
        weight = paddle.where(share < 1.0, weight, paddle.ones_like(weight))
        distance = _hamming(z, z)
        pairs = weight * (same * (distance / gamma).log() + (1.0 + gamma / distance).log())
        rounding = (1.0 + _hamming(z.abs(), paddle.ones_like(z[:1])) / gamma).log()
        return pairs.mean() + quantization * rounding.mean()


def _hamming(one: Tensor, other: Tensor) -> Tensor:
    """Returns relaxed Hamming distances, [B, K], all > 0, between codes [B, D] and codes [K, D]."""
    # Products of lengths near 0 are clipped, because embeddings may be 0 after ReLU.
    lengths = one.norm(axis=1).unsqueeze(1) * other.norm(axis=1).unsqueeze(0)
    cosine = one @ other.t() / lengths.clip(min=1e-4)
    # The distance between a code and itself must not be 0, because its logarithm is taken.
    return (1.0 - cosine.clip(max=0.99)) * (one.shape[1] / 2)


def locality_constrained(features: Tensor, label: Tensor, quantization: float) -> Tensor:
    """Returns the loss of Locality-Constrained Deep Supervised Hashing (Zhu & Gao 2017).

    Args:
        features: Embeddings, [B, D], any floating dtype.
        label: Identities, [B] int64.
        quantization: Weight of the difference between the similarities of embeddings and those of their
            signs.

    Returns:
        Float32 scalar, the mean over all pairs.
    """
    with paddle.amp.auto_cast(enable=False):
        z = features.astype("float32")
        similarity = (0.5 * (z @ z.t())).clip(-_EXPONENT, _EXPONENT)
        bits = z.sign()
        difference = F.sigmoid(similarity) - F.sigmoid(0.5 * (bits @ bits.t()))
        likelihood = F.softplus(-(2.0 * _same_identity(label) - 1.0) * similarity)
        return likelihood.mean() + quantization * difference.square().mean()


def stable_distribution(features: Tensor, logits: Tensor, label: Tensor, alpha: float) -> Tensor:
    """Returns the loss of hashing based on stable distribution (Wu et al. 2019).

    Args:
        features: Embeddings, [B, D], any floating dtype.
        logits: [B, C], any floating dtype.
        label: Classes, [B] int64.
        alpha: Weight of the loss of pairs.

    Returns:
        Float32 scalar, the cross-entropy plus ``alpha / 2`` times the mean loss of all pairs. With the
        squared distance ``d``, the loss of a pair is ``d`` for equal classes, and ``max(0, 2 * D - d)`` for
        different classes.
    """
    with paddle.amp.auto_cast(enable=False):
        z = features.astype("float32")
        same = _same_identity(label)
        distance = (z.unsqueeze(1) - z.unsqueeze(0)).square().sum(axis=2)
        pairs = same * distance + (1.0 - same) * F.relu(2.0 * z.shape[1] - distance)
        return F.cross_entropy(logits.astype("float32"), label) + alpha * 0.5 * pairs.mean()
