"""Stochastic depth (Huang et al. 2016, https://arxiv.org/abs/1603.09382): residuals left out at random."""

from __future__ import annotations

from paddle import Tensor, nn
from paddle.nn import functional as F


class DropPath(nn.Layer):  # type: ignore[misc]
    """Sets whole images' residuals to zero while training, and scales up those that stay.

    Args:
        rate: How many of them, 0 to 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, ...] to the same shape."""
        return F.dropout(x, self.rate, axis=0, training=self.training) if self.rate else x
