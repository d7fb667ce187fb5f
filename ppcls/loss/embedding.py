"""Losses of embeddings: margins for the cosines of a head, and triplets."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor
from paddle.nn import functional as F


def arc_margin(cosine: Tensor, label: Tensor, margin: float, scale: float, easy: bool = False) -> Tensor:
    """Returns scaled cosines with a margin added to the label's angle (Deng et al. 2019, equation 3).

    The label's cosine ``cos(a)`` becomes ``cos(a + m)`` if ``a + m`` is at most pi, and ``cos(a) - m *
    sin(m)``, which still decreases, otherwise. With ``easy``, it stays ``cos(a)`` if that is not above 0.

    Args:
        cosine: Cosines [B, C], -1..1, float32.
        label: Labels [B] int64.
        margin: Margin m in radians.
        scale: Factor on the result.
        easy: See above.

    Returns:
        Logits [B, C] float32 for a cross-entropy.
    """
    sine = (1.0 - cosine.square() + 1e-6).clip(min=1e-6).sqrt()
    turned = cosine * math.cos(margin) - sine * math.sin(margin)
    if easy:
        harder = paddle.where(cosine > 0.0, turned, cosine)
    else:
        harder = paddle.where(cosine > -math.cos(margin), turned, cosine - margin * math.sin(margin))
    return scale * _of_label(harder, cosine, label)


def cos_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Returns scaled cosines, the label's minus a margin (Wang et al. 2018, equation 4); see `arc_margin`."""
    return scale * _of_label(cosine - margin, cosine, label)


def circle_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Returns cosines weighted by their distance from the optimum (Sun et al. 2020, equations 5, 6 and 8).

    The label's cosine becomes ``[1 + m - s]+ * (s - 1 + m)``, others become ``[s + m]+ * (s - m)``. No
    gradient passes through the factors in brackets; see `arc_margin`.
    """
    constant = cosine.detach()
    positive = (1.0 + margin - constant).clip(min=0.0) * (cosine - (1.0 - margin))
    negative = (constant + margin).clip(min=0.0) * (cosine - margin)
    return scale * _of_label(positive, negative, label)


def supervised_contrast(features: Tensor, label: Tensor, temperature: float) -> Tensor:
    """Returns the supervised contrastive loss (Khosla et al. 2020, equation 2), without its factor.

    Args:
        features: Embeddings [B, D], any floating dtype, which are normalized to length 1.
        label: Identities [B] int64.
        temperature: Divisor of the cosines.

    Returns:
        The mean over rows with another row of their identity, a float32 scalar; 0 without such rows.
    """
    with paddle.amp.auto_cast(enable=False):
        z = F.normalize(features.astype("float32"), axis=1)
        others = 1.0 - paddle.eye(z.shape[0])
        logits = z @ z.t() / temperature
        logits = logits - logits.detach().max(axis=1, keepdim=True)
        log_p = logits - (logits.exp() * others).sum(axis=1, keepdim=True).clip(min=1e-30).log()
        same = (label.unsqueeze(1) == label.unsqueeze(0)).astype("float32") * others
        count = same.sum(axis=1)
        cost = -(same * log_p).sum(axis=1) / count.clip(min=1.0)
        return cost.sum() / (count > 0).astype("float32").sum().clip(min=1.0)


def pairwise_cosines(features: Tensor, label: Tensor, margin: float, gamma: float) -> Tensor:
    """Returns the pair similarity loss with one weight for all pairs (Sun et al. 2020, equation 1).

    ``softplus(logsumexp(gamma * (s_n + margin)) + logsumexp(-gamma * s_p))`` over the pairs of each row.

    Args:
        features: Embeddings [B, D], any floating dtype.
        label: Identities [B] int64.

    Returns:
        The mean over the batch, a float32 scalar. A row without positives or without negatives costs nothing.
    """
    with paddle.amp.auto_cast(enable=False):
        z = F.normalize(features.astype("float32"), axis=1)
        cosine = z @ z.t()
        same = (label.unsqueeze(1) == label.unsqueeze(0)).astype("float32")
        positive, negative = same - paddle.eye(z.shape[0]), 1.0 - same
        far = -1e8
        near = paddle.logsumexp(-gamma * cosine * positive + far * (1.0 - positive), axis=1)
        other = paddle.logsumexp(gamma * (cosine + margin) * negative + far * (1.0 - negative), axis=1)
        return F.softplus(near + other).mean()


def _of_label(positive: Tensor, negative: Tensor, label: Tensor) -> Tensor:
    return paddle.where(F.one_hot(label, positive.shape[-1]) > 0.5, positive, negative)


def hard_triplets(features: Tensor, label: Tensor, margin: float, normalize: bool) -> Tensor:
    """Returns the triplet loss of each row's farthest positive and nearest negative.

    ``max(0, margin + max d(a, p) - min d(a, n))`` with Euclidean distances (Hermans et al. 2017, equation 5).
    A row is its own positive, too. A row without negatives costs nothing.

    Args:
        features: Embeddings [B, D], any floating dtype.
        label: Identities [B] int64.
        margin: Margin > 0.
        normalize: Whether to normalize embeddings to length 1 first.

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        z = features.astype("float32")
        z = F.normalize(z, axis=1) if normalize else z
        squares = z.square().sum(axis=1, keepdim=True)
        distance = (squares + squares.t() - 2.0 * (z @ z.t())).clip(min=1e-12).sqrt()
        same = label.unsqueeze(1) == label.unsqueeze(0)
        far = paddle.full_like(distance, 1e30)
        farthest = paddle.where(same, distance, -far).max(axis=1)
        nearest = paddle.where(same, far, distance).min(axis=1)
        return F.relu(margin + farthest - nearest).mean()
