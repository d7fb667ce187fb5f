"""Prepares 8-bit pixels on a GPU in half precision, by one kernel."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn

from ppcls.arch.fused.pixels import VALUES, look_up, supports
from ppcls.deploy.in_graph.layer import PreprocessingLayer


class PixelTable(nn.Layer):  # type: ignore[misc]
    """Layer that prepares images [B, H, W, 3] uint8 with the numbers of another layer, rounded to a dtype.

    Args:
        preparation: Layer that only normalizes pixels.
        dtype: float16 or bfloat16.
    """

    def __init__(self, preparation: PreprocessingLayer, dtype: Any) -> None:
        super().__init__()
        self._preparation = preparation
        values = paddle.arange(VALUES, dtype="float32").reshape([1, VALUES, 1, 1]).tile([1, 1, 1, 3])
        numbers = preparation(values).astype(dtype)
        self._table = numbers.reshape([VALUES, -1]).transpose([1, 0]).contiguous()

    def forward(self, images: Tensor) -> Tensor:
        """Returns the prepared images, [B, H, W, C]."""
        if not supports(images, self._table):
            return self._preparation(images).astype(self._table.dtype)
        return look_up(images, self._table, reverse=self._preparation.reverses)


def use_table(preparation: PreprocessingLayer, dtype: Any) -> nn.Layer:
    """Returns a `PixelTable` if it can replace a layer, else the layer itself.

    Args:
        preparation: Layer that prepares pixels.
        dtype: Dtype of the images that the network receives.
    """
    replaces = preparation.only_normalizes and dtype in (paddle.float16, paddle.bfloat16)
    return PixelTable(preparation, dtype) if replaces else preparation
