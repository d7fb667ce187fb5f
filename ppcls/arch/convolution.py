"""A convolution that is a matrix product where that is faster."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn


class Conv2D(nn.Conv2D):  # type: ignore[misc]
    """`nn.Conv2D`, by a product where its kernel is of one pixel, for images in NHWC and float16.

    There Paddle brings a kernel into cuDNN's order before each convolution, and its gradient back
    (``TransToChannelLast``), three times a step. A kernel of one pixel is in any order. Parameters are the
    same.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H', W'], or the same in NHWC."""
        if x.dtype == paddle.float16 and self.is_product:
            return self.product(x)
        return nn.Conv2D.forward(self, x)  # Paddle's compiler knows no super()

    @property
    def is_product(self) -> bool:
        """Whether each pixel is mapped for itself, with channels last."""
        return (
            self._data_format == "NHWC"
            and self._groups == 1
            and self.bias is None
            and tuple(self._kernel_size) == tuple(self._stride) == (1, 1)
            and self._padding in (0, [0, 0])
        )

    def product(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, H, W, C'] by a matrix product."""
        return paddle.matmul(
            x, self.weight.reshape([self._out_channels, self._in_channels]), transpose_y=True
        )
