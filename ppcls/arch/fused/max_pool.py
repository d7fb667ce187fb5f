"""Max pooling of NHWC images that stores the positions of the maxima for the backward pass."""

from __future__ import annotations

import ctypes
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.cuda import address, contiguous, find_vector_problem, kernels, vector_length

_THREADS = 256  # threads per block
_MOST_PIXELS = 16  # a byte has the position of a maximum in its window
_MAX_BLOCKS = 65_535  # maximum number of blocks on the second axis of a grid


def find_problem(kernel: int, channels: int, dtype: Any) -> str | None:
    """Returns why `max_pool` can't compute a pooling; None if it can."""
    if kernel > _MOST_PIXELS:
        return f"the kernels have windows of at most {_MOST_PIXELS} pixels a side, got {kernel}"
    return find_vector_problem(channels, dtype)


def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Returns the maxima of square windows.

    Args:
        x: [B, H, W, C] float32, float16 or bfloat16 on the GPU. The channels of a pixel must fill whole
            vectors of 16 bytes.
        kernel: Side of a window in pixels, at most 16.
        stride: Distance between two windows in pixels.
        padding: Number of added pixels on each side, less than ``kernel``. They are never the maximum.
    """
    output: Tensor = _MaxPool.apply(contiguous(x), kernel, stride, padding)
    return output


class _Shape(ctypes.Structure):
    """The C struct ``Shape`` of max_pool.cu, which the kernels receive as an argument."""

    _fields_ = (
        ("batch", ctypes.c_int),
        ("height", ctypes.c_int),
        ("width", ctypes.c_int),
        ("columns", ctypes.c_int),
        ("out_height", ctypes.c_int),
        ("out_width", ctypes.c_int),
        ("kernel", ctypes.c_int),
        ("stride", ctypes.c_int),
        ("padding", ctypes.c_int),
    )


class _MaxPool(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        batch, height, width, channels = x.shape
        rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        vectors = channels // vector_length(x.dtype)
        context.shape = _Shape(batch, height, width, vectors, rows, columns, kernel, stride, padding)
        y = paddle.empty([batch, rows, columns, channels], x.dtype)
        winners = paddle.empty(y.shape, "uint8")
        _launch("max_pool", (batch * rows, columns * vectors), (x, y, winners), context.shape)
        context.save_for_backward(winners)
        context.input = x.shape
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (winners,) = context.saved_tensor()
        dx = paddle.empty(context.input, gradient.dtype)
        size = context.shape.batch * context.shape.height, context.shape.width * context.shape.columns
        _launch("max_pool_gradient", size, (contiguous(gradient), winners, dx), context.shape)
        return dx


def _launch(
    kernel: str, size: tuple[int, int], tensors: tuple[Tensor, Tensor, Tensor], shape: _Shape
) -> None:
    """Launches a kernel; ``size`` is the number of rows and the number of vectors per row."""
    rows, row = size
    grid = (-(-row // _THREADS), min(rows, _MAX_BLOCKS))
    kernels("max_pool.cu", tensors[0].dtype).launch(
        kernel, grid, (_THREADS, 1), *map(address, tensors), shape
    )
