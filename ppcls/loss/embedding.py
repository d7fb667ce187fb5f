"""Losses of embeddings: margins on a head's cosines, and triplets."""

from __future__ import annotations

import math

import paddle
from paddle import Tensor
from paddle.nn import functional as F


def arc_margin(cosine: Tensor, label: Tensor, margin: float, scale: float, easy: bool = False) -> Tensor:
    """Adds a margin to the label's angle (Deng et al. 2019, equation 3), and scales.

    ``cos(a + m)`` where ``a + m`` is at most pi; beyond, ``cos(a) - m * sin(m)``, which goes on falling. With
    ``easy``, ``cos(a)`` itself where it is not above 0.

    Args:
        cosine: [B, C], -1..1, float32.
        label: [B] int64.
        margin: m, in radians.
        scale: Factor.
        easy: See above.

    Returns:
        [B, C] float32, for a cross-entropy.
    """
    sine = (1.0 - cosine.square() + 1e-6).clip(min=1e-6).sqrt()
    turned = cosine * math.cos(margin) - sine * math.sin(margin)
    if easy:
        harder = paddle.where(cosine > 0.0, turned, cosine)
    else:
        harder = paddle.where(cosine > -math.cos(margin), turned, cosine - margin * math.sin(margin))
    return scale * _of_label(harder, cosine, label)


def cos_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Takes a margin off the label's cosine (Wang et al. 2018, equation 4), and scales; see `arc_margin`."""
    return scale * _of_label(cosine - margin, cosine, label)


def circle_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Weighs cosines by how far they are from their goals (Sun et al. 2020, equations 5, 6 and 8).

    The label's becomes ``[1 + m - s]+ * (s - 1 + m)``, others ``[s + m]+ * (s - m)``, where no gradient goes
    through the factors in brackets; see `arc_margin`.
    """
    constant = cosine.detach()
    own = (1.0 + margin - constant).clip(min=0.0) * (cosine - (1.0 - margin))
    others = (constant + margin).clip(min=0.0) * (cosine - margin)
    return scale * _of_label(own, others, label)


def _of_label(own: Tensor, others: Tensor, label: Tensor) -> Tensor:
    return paddle.where(F.one_hot(label, own.shape[-1]) > 0.5, own, others)


def hard_triplets(features: Tensor, label: Tensor, margin: float, normalize: bool) -> Tensor:
    """Triplet loss of each row with its farthest positive and nearest negative (Hermans et al. 2017, eq. 5).

    ``max(0, margin + max d(a, p) - min d(a, n))`` with Euclidean distances. A row is a positive of its own;
    one without negatives costs nothing.

    Args:
        features: [B, D], any floating dtype.
        label: [B] int64, identities.
        margin: > 0.
        normalize: Whether embeddings are made of length 1 before.

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
