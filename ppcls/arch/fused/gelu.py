"""GELU by the error function, as `paddle.nn.functional.gelu` computes it by default."""

from __future__ import annotations

import ctypes
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.cuda import address, contiguous, kernels, vector_length
from ppcls.arch.fused.sum_rows import sum_rows

_THREADS = 256  # threads per block; the same number as THREADS in gelu.cu
_LANES = 32  # adjacent vectors that a warp processes
_BLOCKS_PER_MULTIPROCESSOR = 8


def gelu(x: Tensor) -> Tensor:
    """Returns GELU of a tensor whose size is a multiple of the vector length.

    Args:
        x: Float32, float16 or bfloat16.
    """
    output: Tensor = _Gelu.apply(contiguous(x))
    return output


class _Gelu(PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return compute_gelu(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensor()
        dx = paddle.empty_like(x)
        _launch("gelu_gradient", contiguous(gradient), x, dx)
        return dx


def compute_gelu(x: Tensor) -> Tensor:
    """Returns GELU of a contiguous tensor, without a gradient."""
    y = paddle.empty_like(x)
    _launch("gelu", x, y)
    return y


def compute_gradients(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of ``x`` and of a bias that was added to get ``x``.

    Args:
        gradient: Gradient of GELU, with the shape of ``x``.
        x: [..., C] float32, float16 or bfloat16.

    Returns:
        Gradient of ``x``, and the sum of its rows, [C] float32.
    """
    channels = x.shape[-1]
    vectors = channels // vector_length(x.dtype)
    rows = x.size // channels
    library = kernels("gelu.cu", x.dtype)
    across = -(-vectors // _LANES)
    most = max(1, _BLOCKS_PER_MULTIPROCESSOR * library.multiprocessors // across)
    down = min(most, -(-rows // (_THREADS // _LANES)))
    dx = paddle.empty_like(x)
    partial = paddle.empty([down, channels])
    tensors = map(address, (gradient, x, dx, partial))
    sizes = ctypes.c_int(rows), ctypes.c_int(vectors)
    library.launch("gelu_bias_gradient", (across, down), (_THREADS, 1), *tensors, *sizes)
    return dx, sum_rows(partial)


def _launch(kernel: str, *tensors: Tensor) -> None:
    x = tensors[0]
    count = x.size // vector_length(x.dtype)
    grid = (-(-count // _THREADS), 1)
    kernels("gelu.cu", x.dtype).launch(
        kernel, grid, (_THREADS, 1), *map(address, tensors), ctypes.c_int(count)
    )
