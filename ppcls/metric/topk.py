"""Top-k accuracy."""

from __future__ import annotations

import paddle
from paddle import Tensor


def topk_correct(logits: Tensor, label: Tensor, topk: tuple[int, ...]) -> Tensor:
    """Counts the rows whose label is among the ``k`` highest logits; ties fall as in `paddle.topk`.

    Args:
        logits: [B, C], any floating dtype.
        label: [B] int64; or [B, C] float, each row's share of every class: the largest is the label.
        topk: Each in 1..C.

    Returns:
        [len(topk)] int64, on the device of ``logits``.
    """
    if label.ndim == 2:
        label = label.argmax(axis=-1)
    predicted = paddle.topk(logits.astype("float32"), max(topk), axis=-1)[1]
    hit = (predicted == label.unsqueeze(-1)).astype("int64")
    return paddle.stack([hit[:, :k].sum() for k in topk])
