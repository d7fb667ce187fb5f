"""Max pooling of NHWC float32 images on a CPU."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.kernels.geometry import Geometry
from ppcls.arch.onednn.library import (
    NHWC,
    Argument,
    Primitive,
    describe_primitive,
    integers,
    keep_primitives,
    library,
    tensor_format,
)

_TRAINING = 64  # dnnl_forward_training
_MAXIMUM = 0x1FF  # dnnl_pooling_max


def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Returns the maxima of square windows.

    Args:
        x: [B, H, W, C] float32.
        kernel: Side of a window in pixels.
        stride: Distance between two windows in pixels.
        padding: Number of added pixels on each side, less than ``kernel``. They are never the maximum.
    """
    output: Tensor = _CpuMaxPool.apply(x.contiguous(), kernel, stride, padding)
    return output


class _CpuMaxPool(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        context.plan = _plan(tuple(x.shape), kernel, stride, padding)
        output, winners = context.plan.forward(x)
        context.save_for_backward(winners)
        return output

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (winners,) = context.saved_tensor()
        dx: Tensor = context.plan.backward(gradient.contiguous(), winners)
        return dx


class _PoolingPrimitives:
    """The primitives of a pooling for images of one size."""

    def __init__(self, image: tuple[int, ...], kernel: int, stride: int, padding: int) -> None:
        batch, height, width, channels = image
        geometry = Geometry((padding,) * 4, (stride, stride), (1, 1), 1)
        rows, columns = geometry.output_size((height, width), (kernel, kernel))
        self._input = list(image)
        self._output = [batch, rows, columns, channels]
        x = tensor_format([batch, channels, height, width], NHWC)
        y = tensor_format([batch, channels, rows, columns], NHWC)
        # A dilation of 0 means adjacent pixels. The last two arguments are the padding before and after.
        sides = [integers([side, side]) for side in (stride, kernel, 0, padding, padding)]
        description = describe_primitive("pooling_forward", _TRAINING, _MAXIMUM, x, y, *sides)
        workspace = library().query_format(description, Argument.WORKSPACE)
        self._winners = library().size(workspace)
        formats = {Argument.SOURCE: x, Argument.TARGET: y, Argument.WORKSPACE: workspace}
        self._forward = Primitive(description, formats)
        description = describe_primitive("pooling_backward", _MAXIMUM, x, y, *sides, description)
        formats = {
            Argument.SOURCE_GRADIENT: x,
            Argument.TARGET_GRADIENT: y,
            Argument.WORKSPACE: workspace,
        }
        self._backward = Primitive(description, formats)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the maxima and oneDNN's record of their positions."""
        y = paddle.empty(self._output)
        winners = paddle.empty([self._winners], "uint8")
        self._forward.run({Argument.SOURCE: x, Argument.TARGET: y, Argument.WORKSPACE: winners})
        return y, winners

    def backward(self, gradient: Tensor, winners: Tensor) -> Tensor:
        """Returns the gradient of the images."""
        dx = paddle.empty(self._input)
        self._backward.run(
            {
                Argument.SOURCE_GRADIENT: dx,
                Argument.TARGET_GRADIENT: gradient,
                Argument.WORKSPACE: winners,
            }
        )
        return dx


_plan = keep_primitives(_PoolingPrimitives)
