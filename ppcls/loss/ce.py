"""Cross-entropy."""

from __future__ import annotations

import paddle
from paddle import Tensor


def cross_entropy(logits: Tensor, label: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy between the softmax of ``logits`` and ``label``, in float32.

    As a target ``t`` sums to 1, ``-sum(t * log softmax(z)) = log(sum(exp(z))) - sum(t * z)``. With smoothing
    ``s`` the target is ``(1 - s) * t + s / C`` (Szegedy et al. 2016, section 7), so ``sum(t * z)`` becomes
    ``(1 - s) * sum(t * z) + s * mean(z)``. Not by way of `log_softmax`, which on the CPU stops at -64.

    Args:
        logits: [B, C], any floating dtype.
        label: [B] int64, classes in 0..C-1; or [B, C] float, rows that sum to 1.
        smoothing: In [0, 1).

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        z = logits.astype("float32")
        z = z - z.detach().max(axis=-1, keepdim=True)
        if label.ndim == 2:
            expected = (label.astype("float32") * z).sum(axis=-1)
        else:
            expected = paddle.take_along_axis(z, label.unsqueeze(-1), axis=-1).squeeze(-1)
        if smoothing:
            expected = (1.0 - smoothing) * expected + smoothing * z.mean(axis=-1)
        return (z.exp().sum(axis=-1).log() - expected).mean()
