"""Dropout, and stochastic depth (Huang et al. 2016, https://arxiv.org/abs/1603.09382)."""

from __future__ import annotations

from paddle import Tensor, nn
from paddle.nn import functional as F


class DropPath(nn.Layer):  # type: ignore[misc]
    """Skips residuals of random images during training, and scales up the others.

    Args:
        rate: Probability of skipping, 0 to 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, ...] to the same shape."""
        return F.dropout(x, self.rate, axis=0, training=self.training) if self.rate else x


def drop_paths(rate: float, depth: int) -> list[float]:
    """Returns the rates of ``depth`` blocks, which increase linearly from 0 to ``rate``."""
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


def dropout(rate: float) -> nn.Layer:
    """Returns a dropout layer, or the identity for rate 0, which draws no random numbers."""
    return nn.Dropout(rate) if rate else nn.Identity()
