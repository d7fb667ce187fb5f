"""Dropout and stochastic depth (Huang et al. 2016, https://arxiv.org/abs/1603.09382)."""

from __future__ import annotations

from paddle import Tensor, nn
from paddle.nn import functional as F


class DropPath(nn.Layer):  # type: ignore[misc]
    """Sets the residuals of random images to zero in training, and scales up the residuals of other images.

    Args:
        rate: Probability of skipping the residual of an image, 0 to 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, ...] to the same shape."""
        return F.dropout(x, self.rate, axis=0, training=self.training) if self.rate else x


def drop_paths(rate: float, depth: int) -> list[float]:
    """Returns the skip rates of ``depth`` blocks, which increase linearly from 0 to ``rate``."""
    return [rate * i / max(depth - 1, 1) for i in range(depth)]


def dropout(rate: float) -> nn.Layer:
    """Returns a dropout layer. For rate 0, returns the identity, which draws no random numbers."""
    return nn.Dropout(rate) if rate else nn.Identity()
