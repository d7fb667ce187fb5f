"""Implements losses of embeddings: margins for the cosines of a head, and losses of pairs and triplets."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor
from paddle.nn import functional as F


def arc_margin(cosine: Tensor, label: Tensor, margin: float, scale: float, easy: bool = False) -> Tensor:
    """Returns scaled cosines with a margin added to the label's angle (Deng et al. 2019, equation 3).

    The label's cosine ``cos(a)`` is replaced by ``cos(a + m)`` if ``a + m`` is at most pi. Otherwise, it is
    replaced by ``cos(a) - m * sin(m)``, which still decreases with ``a``.

    Args:
        cosine: [B, C] float32, -1..1.
        label: [B] int64.
        margin: Margin m in radians.
        scale: Factor of the result.
        easy: Whether the label's cosine remains unchanged if it is not above 0.

    Returns:
        Logits for a cross-entropy, [B, C] float32.
    """
    sine = (1.0 - cosine.square() + 1e-6).clip(min=1e-6).sqrt()
    turned = cosine * math.cos(margin) - sine * math.sin(margin)
    if easy:
        harder = paddle.where(cosine > 0.0, turned, cosine)
    else:
        harder = paddle.where(cosine > -math.cos(margin), turned, cosine - margin * math.sin(margin))
    return scale * _of_label(harder, cosine, label)


def cos_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Returns scaled cosines, with a margin subtracted from the label's cosine.

    See Wang et al. 2018, equation 4, and `arc_margin` for the arguments.
    """
    return scale * _of_label(cosine - margin, cosine, label)


def circle_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Returns cosines weighted by their distance from the optimum (Sun et al. 2020, equations 5, 6 and 8).

    The label's cosine ``s`` is replaced by ``[1 + m - s]+ * (s - 1 + m)``, where ``[x]+`` is ``max(x, 0)``.
    All other cosines are replaced by ``[s + m]+ * (s - m)``. The factors in brackets get no gradient. See
    `arc_margin` for the arguments.
    """
    constant = cosine.detach()
    positive = (1.0 + margin - constant).clip(min=0.0) * (cosine - (1.0 - margin))
    negative = (constant + margin).clip(min=0.0) * (cosine - margin)
    return scale * _of_label(positive, negative, label)


def supervised_contrast(features: Tensor, label: Tensor, temperature: float) -> Tensor:
    """Returns the supervised contrastive loss (Khosla et al. 2020, equation 2), without its constant factor.

    Args:
        features: Embeddings, [B, D], any floating dtype. The loss normalizes them to length 1.
        label: Identities, [B] int64.
        temperature: Divisor of the cosines.

    Returns:
        Float32 scalar, the mean over rows whose identity has another row; 0 if there are no such rows.
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
    """Returns the pair similarity loss with equal weights of all pairs (Sun et al. 2020, equation 1).

    The loss of a row is ``softplus(logsumexp(gamma * (s_n + margin)) + logsumexp(-gamma * s_p))``. ``s_p``
    are its cosines with rows of the same identity, ``s_n`` with rows of other identities.

    Args:
        features: Embeddings, [B, D], any floating dtype. The loss normalizes them to length 1.
        label: Identities, [B] int64.
        margin: Margin between ``s_p`` and ``s_n``.
        gamma: Scale of the cosines.

    Returns:
        Float32 scalar, the mean over the batch. The loss of a row without ``s_p`` or without ``s_n`` is 0.
    """
    with paddle.amp.auto_cast(enable=False):
        z = F.normalize(features.astype("float32"), axis=1)
        cosine = z @ z.t()
        same = (label.unsqueeze(1) == label.unsqueeze(0)).astype("float32")
        positive = same - paddle.eye(z.shape[0])
        negative = 1.0 - same
        far = -1e8
        near = paddle.logsumexp(-gamma * cosine * positive + far * (1.0 - positive), axis=1)
        other = paddle.logsumexp(gamma * (cosine + margin) * negative + far * (1.0 - negative), axis=1)
        return F.softplus(near + other).mean()


def _of_label(positive: Tensor, negative: Tensor, label: Tensor) -> Tensor:
    return paddle.where(F.one_hot(label, positive.shape[-1]) > 0.5, positive, negative)


def hard_triplets(features: Tensor, label: Tensor, margin: float, normalize: bool) -> Tensor:
    """Returns the triplet loss with the hardest triplet of each row (Hermans et al. 2017, equation 5).

    The loss of a row is ``max(0, margin + d_p - d_n)``. ``d_p`` is the Euclidean distance to the farthest row
    of the same identity, which may be the row itself. ``d_n`` is the distance to the nearest row of another
    identity. If there is no such row, the loss is 0.

    Args:
        features: Embeddings, [B, D], any floating dtype.
        label: Identities, [B] int64.
        margin: Margin > 0.
        normalize: Whether to normalize embeddings to length 1 first.

    Returns:
        Float32 scalar, the mean over the batch.
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
