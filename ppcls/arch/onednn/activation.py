"""Activations of float32 tensors on a CPU.

Paddle computes them with one thread. For EfficientNetB0, they took a fifth of a training step.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from ppcls.arch.onednn.library import Argument, Primitive, describe_primitive, keep_primitives, tensor_format

_TRAINING = 64  # dnnl_forward_training

# Algorithm of oneDNN (dnnl_eltwise_*) with its parameters alpha and beta, for each activation.
_ALGORITHMS: dict[Callable[..., Tensor], tuple[int, float, float]] = {
    F.gelu: (0x31, 0.0, 0.0),  # by the error function, the default of Paddle
    F.swish: (0x2C, 1.0, 0.0),
    F.silu: (0x2C, 1.0, 0.0),
    F.hardswish: (0x34, 1 / 6, 0.5),
}


def find_activation(act: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor] | None:
    """Returns a function that computes an activation of Paddle; None if oneDNN has no such activation."""
    return None if act is None or act not in _ALGORITHMS else _activation(act)


@cache
def _activation(act: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    def activate(x: Tensor, *options: Any, **named: Any) -> Tensor:
        # With options, such as `approximate` of GELU, a user's layer computes another function.
        if x.dtype != paddle.float32 or options or named:
            return act(x, *options, **named)
        output: Tensor = _CpuActivation.apply(x.contiguous(), act)
        return output

    return activate


class _CpuActivation(PyLayer):  # type: ignore[misc]
    """A differentiable activation."""

    @staticmethod
    def forward(context: Any, x: Tensor, act: Callable[..., Tensor]) -> Tensor:
        context.plan = _plan(math.prod(x.shape), act)
        context.save_for_backward(x)
        y = paddle.empty(x.shape)
        context.plan[0].run({Argument.SOURCE: x, Argument.TARGET: y})
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensor()
        dx = paddle.empty(x.shape)
        gradient = gradient.contiguous()
        tensors = {Argument.SOURCE: x, Argument.TARGET_GRADIENT: gradient, Argument.SOURCE_GRADIENT: dx}
        context.plan[1].run(tensors)
        return dx


@keep_primitives
def _plan(size: int, act: Callable[..., Tensor]) -> tuple[Primitive, Primitive]:
    """Returns the primitives of an activation and its gradient, for tensors of one size."""
    algorithm, alpha, beta = _ALGORITHMS[act]
    x = tensor_format([size], "a")
    rule = (ctypes.c_float(alpha), ctypes.c_float(beta))
    forward = describe_primitive("eltwise_forward", _TRAINING, algorithm, x, x, *rule)
    backward = describe_primitive("eltwise_backward", algorithm, x, x, x, *rule, forward)
    formats = {Argument.SOURCE: x, Argument.TARGET_GRADIENT: x, Argument.SOURCE_GRADIENT: x}
    return (
        Primitive(forward, {Argument.SOURCE: x, Argument.TARGET: x}),
        Primitive(backward, formats),
    )
