"""Dtypes of operands under Paddle's automatic mixed precision (AMP), which ignores our kernels.

The state of AMP is read from private attributes, because Paddle 2.6.2 has no public function that returns it.
Paddle 3.3.1 has ``paddle.is_autocast_enabled`` and ``paddle.get_autocast_dtype``. The private attributes are
the same in both; tests/arch/fused/test_amp.py fails if they change.
"""

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
