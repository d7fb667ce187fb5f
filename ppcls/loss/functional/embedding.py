"""Losses of pairs and triplets of embeddings, in float32."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional as F


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
        # The sum is 0 for a batch of one row, whose logarithm would be infinite.
        log_p = logits - (logits.exp() * others).sum(axis=1, keepdim=True).clip(min=1e-30).log()
        same = (label.unsqueeze(1) == label.unsqueeze(0)).astype("float32") * others
        # Rows without another row of their identity have no cost and are not counted.
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
        # Pairs of the other kind get a cosine of 0 and this offset, so that their exponential is 0. Minus
        # infinity would become NaN for the other pairs, where it is multiplied by 0.
        far = -1e8
        near = paddle.logsumexp(-gamma * cosine * positive + far * (1.0 - positive), axis=1)
        other = paddle.logsumexp(gamma * (cosine + margin) * negative + far * (1.0 - negative), axis=1)
        return F.softplus(near + other).mean()


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
        # The gradient of a square root is infinite at 0, the distance between a row and itself.
        distance = (squares + squares.t() - 2.0 * (z @ z.t())).clip(min=1e-12).sqrt()
        same = label.unsqueeze(1) == label.unsqueeze(0)
        far = paddle.full_like(distance, 1e30)
        farthest = paddle.where(same, distance, -far).max(axis=1)
        nearest = paddle.where(same, far, distance).min(axis=1)
        return F.relu(margin + farthest - nearest).mean()
