"""Dtypes of operands under Paddle's automatic mixed precision (AMP), which ignores our kernels."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor


def amp_is_active() -> bool:
    """Returns whether Paddle casts the operands of operators."""
    return _tracer()._amp_level != paddle.base.core.AmpLevel.O0  # type: ignore[no-any-return]


def compute_dtype(x: Tensor) -> Any:
    """Returns the dtype of mixed precision (AMP) if it is active, else that of ``x``."""
    return getattr(paddle, _tracer()._amp_dtype) if amp_is_active() else x.dtype


def _tracer() -> Any:
    return paddle.base.framework._dygraph_tracer()


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    """Returns the tensor in another dtype. A tensor that has the dtype is not copied."""
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)
