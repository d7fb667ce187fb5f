"""Cross-entropy."""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional as F


def cross_entropy(logits: Tensor, label: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy between the softmax of ``logits`` and ``label``, in float32.

    With smoothing ``s`` the target is ``(1 - s) * label + s / C`` (Szegedy et al. 2016, section 7), so the
    loss is ``(1 - s)`` times the plain one plus ``s`` times the mean of ``-log p`` over the classes.

    Args:
        logits: [B, C], any floating dtype.
        label: [B] int64, classes in 0..C-1; or [B, C] float, rows that sum to 1.
        smoothing: In [0, 1).

    Returns:
        The mean over the batch, a float32 scalar.
    """
    with paddle.amp.auto_cast(enable=False):
        log_p = F.log_softmax(logits.astype("float32"), axis=-1)
        if label.ndim == 2:
            loss = -(label.astype("float32") * log_p).sum(axis=-1).mean()
        else:
            loss = F.nll_loss(log_p, label)
        if smoothing:
            loss = (1.0 - smoothing) * loss - smoothing * log_p.mean()
        return loss
