"""The mean of all pixels of NHWC images, for squeeze-and-excitation and before classifiers.

Paddle computes it by its general reduction. By its source, that reads the pixels of one channel after
another, which are not adjacent in this layout. The two have not been compared on a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.cuda import address, contiguous, kernels, vector_length

_THREADS = 512  # threads per block; the same number as THREADS in mean_pool.cu
_BLOCKS_PER_MULTIPROCESSOR = 16
_WIDTH = 16  # largest number of vectors of a pixel per block


def mean_pool(x: Tensor) -> Tensor:
    """Returns the means of all pixels, [B, 1, 1, C].

    They are added up in float32, in a fixed order.

    Args:
        x: [B, H, W, C] float32, float16 or bfloat16 on the GPU. The channels of a pixel must fill whole
            vectors of 16 bytes.
    """
    output: Tensor = _MeanPool.apply(contiguous(x))
    return output


def pool_squares(x: Tensor, side: int) -> Tensor:
    """Returns the means of squares that do not overlap, without a gradient.

    Args:
        x: [B, H, W, C] as for `mean_pool`. H and W must be multiples of ``side``.
        side: Side of a square in pixels.
    """
    batch, height, width, channels = x.shape
    y = paddle.empty([batch, height // side, width // side, channels], x.dtype)
    columns = channels // vector_length(x.dtype)
    count = y.size // vector_length(x.dtype)
    program = kernels("mean_pool.cu", x.dtype)
    blocks = min(-(-count // _THREADS), _BLOCKS_PER_MULTIPROCESSOR * program.multiprocessors)
    sizes = map(ctypes.c_int, (count, width // side, width, columns, side))
    operands = map(address, (contiguous(x), y))
    program.launch("mean_of_squares", (blocks, 1), (_THREADS, 1), *operands, *sizes)
    return y


class _MeanPool(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `mean_pool`."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.input = x.shape
        y = paddle.empty([x.shape[0], 1, 1, x.shape[3]], x.dtype)
        _launch("mean_pool", x, y, x.shape)
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        dx = paddle.empty(context.input, gradient.dtype)
        _launch("mean_pool_gradient", contiguous(gradient), dx, context.input)
        return dx


def _launch(kernel: str, source: Tensor, target: Tensor, shape: list[int]) -> None:
    """Launches a kernel for images of a shape."""
    batch, height, width, channels = shape
    columns = channels // vector_length(source.dtype)
    across = 1
    while across < min(columns, _WIDTH):  # powers of two, as the kernel needs
        across *= 2
    grid = (batch, -(-columns // across))
    sizes = ctypes.c_int(height * width), ctypes.c_int(columns)
    block = (across, _THREADS // across)
    kernels("mean_pool.cu", source.dtype).launch(
        kernel, grid, block, address(source), address(target), *sizes
    )
