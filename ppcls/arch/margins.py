"""Margins of heads: they convert cosines into logits whose cross-entropy demands a margin for the label."""

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
    with paddle.amp.auto_cast(enable=False):
        # The root has an infinite gradient at 0, where the cosine is 1. So 1e-6 is added, as in PaddleClas.
        # Rounding can make a cosine slightly larger than 1, hence the clip.
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
    with paddle.amp.auto_cast(enable=False):
        return scale * _of_label(cosine - margin, cosine, label)


def circle_margin(cosine: Tensor, label: Tensor, margin: float, scale: float) -> Tensor:
    """Returns cosines weighted by their distance from the optimum (Sun et al. 2020, equations 5, 6 and 8).

    The label's cosine ``s`` is replaced by ``[1 + m - s]+ * (s - 1 + m)``, where ``[x]+`` is ``max(x, 0)``.
    All other cosines are replaced by ``[s + m]+ * (s - m)``. The factors in brackets get no gradient. See
    `arc_margin` for the arguments.
    """
    with paddle.amp.auto_cast(enable=False):
        constant = cosine.detach()
        positive = (1.0 + margin - constant).clip(min=0.0) * (cosine - (1.0 - margin))
        negative = (constant + margin).clip(min=0.0) * (cosine - margin)
        return scale * _of_label(positive, negative, label)


def _of_label(positive: Tensor, negative: Tensor, label: Tensor) -> Tensor:
    return paddle.where(F.one_hot(label, positive.shape[-1]) > 0.5, positive, negative)
