"""Dtypes of operands under Paddle's automatic mixed precision (AMP), which ignores our kernels.

Under AMP O1, each layer rounds its float32 weights to half precision in each forward pass. `rounded_weights`
lets all layers share copies that one operator has made.

The state of AMP is read from private attributes, because Paddle 2.6.2 has no public function that returns it.
Paddle 3.3.1 has ``paddle.is_autocast_enabled`` and ``paddle.get_autocast_dtype``. The private attributes are
the same in both; tests/arch/fused/test_amp.py fails if they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

_copies: dict[int, Tensor] = {}  # rounded copies of weights, by the id of the weight


def amp_is_active() -> bool:
    """Returns whether Paddle casts the operands of operators."""
    return _tracer()._amp_level != paddle.base.core.AmpLevel.O0  # type: ignore[no-any-return]


def compute_dtype(x: Tensor) -> Any:
    """Returns the dtype of mixed precision (AMP) if it is active, else that of ``x``."""
    return getattr(paddle, _tracer()._amp_dtype) if amp_is_active() else x.dtype


def _tracer() -> Any:
    return paddle.base.framework._dygraph_tracer()


def name_of(dtype: Any) -> str:
    """Returns the name of a dtype for messages, such as ``float16``."""
    return str(dtype).rpartition(".")[2]


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    """Returns the tensor in another dtype. A tensor that has the dtype is not copied."""
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)


@contextmanager
def rounded_weights(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Makes `rounded` return copies of weights within a ``with`` block, instead of rounding the weights.

    Args:
        pairs: Weights, each with its rounded copy. The weights must not change within the block.
    """
    _copies.update({id(weight): copy for weight, copy in pairs})
    try:
        yield
    finally:
        _copies.clear()


def rounded(weight: Tensor, dtype: Any) -> Tensor:
    """Returns the result of `cast`, which is a copy of `rounded_weights` if there is one of this dtype.

    Gradients reach the weight in the same dtype and with the same values as through `cast`.
    """
    copy = _copies.get(id(weight))
    if copy is None or copy.dtype != dtype:
        return cast(weight, dtype)
    if weight.stop_gradient or not paddle.is_grad_enabled():
        return copy
    output: Tensor = _Copy.apply(weight)
    return output


class _Copy(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `rounded` for a weight that has a copy."""

    @staticmethod
    def forward(context: Any, weight: Tensor) -> Tensor:
        context.dtype = weight.dtype
        return _copies[id(weight)].detach()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return cast(gradient, context.dtype)
