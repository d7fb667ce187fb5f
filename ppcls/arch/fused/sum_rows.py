"""Sums of the rows of a matrix, in a fixed order: the last step of kernels that return one row per block."""

from __future__ import annotations

import ctypes

import paddle
from paddle import Tensor

from ppcls.arch.fused.cuda import address, kernels

_THREADS = 256  # threads per block; the same number as THREADS in sum_rows.cu
_COLUMNS = 32  # columns per block


def sum_rows(partial: Tensor) -> Tensor:
    """Returns the sum of the rows of a matrix [rows, columns] float32."""
    rows, columns = partial.shape
    result = paddle.empty([columns])
    sizes = ctypes.c_int(rows), ctypes.c_int(columns)
    kernels("sum_rows.cu", partial.dtype).launch(
        "sum_rows", (-(-columns // _COLUMNS), 1), (_THREADS, 1), address(partial), address(result), *sizes
    )
    return result
