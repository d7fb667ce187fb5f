"""GELU by the error function, as `paddle.nn.functional.gelu` computes it by default."""

from __future__ import annotations

import ctypes
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.cuda import address, contiguous, kernels, vector_length

_THREADS = 256  # threads per block; the same number as THREADS in gelu.cu


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
        y = paddle.empty_like(x)
        _launch("gelu", x, y)
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensor()
        dx = paddle.empty_like(x)
        _launch("gelu_gradient", contiguous(gradient), x, dx)
        return dx


def _launch(kernel: str, *tensors: Tensor) -> None:
    x = tensors[0]
    count = x.size // vector_length(x.dtype)
    grid = (-(-count // _THREADS), 1)
    kernels("gelu.cu", x.dtype).launch(
        kernel, grid, (_THREADS, 1), *map(address, tensors), ctypes.c_int(count)
    )
