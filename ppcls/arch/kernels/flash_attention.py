"""Paddle's FlashAttention, for attention in half precision that our own kernels do not support.

It needs a GPU of compute capability 8.0 or newer. Paddle's package for CUDA 11 lacks it for Hopper GPUs. It
has no gradient of a bias.

This module has not been run on a GPU. Tests check on a CPU when it is used and how its operands are arranged.
`find_problem` compares FlashAttention with plain operators before the first use for each shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F

# Unlike this function, `paddle.nn.functional.scaled_dot_product_attention` of Paddle 3 uses plain operators
# without a message if FlashAttention does not support a call.
from paddle.nn.functional.flash_attention import flash_attention

_LARGEST_WIDTH = 256  # of a head
_WIDTH_STEP = 8
_LEAST_CAPABILITY = (8, 0)
_HOPPER = (9, 0)
_TOLERANCE = 0.05  # of two ways to compute the same; bfloat16 has an error of 0.004 per number


@dataclass(frozen=True)
class AttentionShape:
    """The numbers that decide how attention is computed.

    Attributes:
        queries: Queries per sequence.
        keys: Keys per sequence.
        heads: Number of heads.
        width: Width of a head.
        dtype: Dtype of queries, keys and values.
    """

    queries: int
    keys: int
    heads: int
    width: int
    dtype: Any


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float) -> Tensor:
    """Returns the attention of queries [B, N, C] to keys and values [B, M, C], float16 or bfloat16.

    Args:
        query: Queries of all heads.
        key: Keys.
        value: Values.
        heads: Number of heads.
        scale: Factor for the products of queries and keys.
    """
    width = query.shape[-1] // heads
    factor = scale * width**0.5  # FlashAttention itself divides by the root of the width
    if abs(factor - 1.0) > 1e-6:
        query = query * factor
    parts = [x.reshape([0, 0, heads, width]) for x in (query, key, value)]
    output, _ = flash_attention(*parts)
    return output.flatten(2)


@cache
def find_problem(shape: AttentionShape) -> str | None:
    """Returns why FlashAttention must not be used; None if its results and gradients are right.

    Computes the attention of one sequence, and compares it with plain operators.
    """
    if shape.width % _WIDTH_STEP or shape.width > _LARGEST_WIDTH:
        return f"supports heads whose width is a multiple of {_WIDTH_STEP} up to {_LARGEST_WIDTH}"
    if (problem := _find_device_problem()) is not None:
        return problem
    try:
        values = _differentiate(attend, shape)
    except (AssertionError, OSError, RuntimeError, ValueError) as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    for value, expected in zip(values, _differentiate(_attend_plainly, shape), strict=True):
        difference = float(paddle.linalg.norm(value - expected) / paddle.linalg.norm(expected))
        if not difference <= _TOLERANCE:
            return f"returns numbers that differ by {difference:.1%}"
    return None


def _find_device_problem() -> str | None:
    if not paddle.is_compiled_with_cuda():
        return "needs a GPU"
    capability = paddle.device.cuda.get_device_capability()
    if capability < _LEAST_CAPABILITY:
        return f"needs compute capability 8.0, got {capability[0]}.{capability[1]}"
    # Not left to `find_problem`: an error in the library's kernels may end the process.
    if capability >= _HOPPER and paddle.version.cuda().startswith("11."):
        return "Paddle's package for CUDA 11 lacks it for Hopper GPUs"
    return None


def _attend_plainly(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float) -> Tensor:
    """Returns the result of `attend` from plain operators."""
    query, key, value = (x.reshape([0, 0, heads, -1]).transpose([0, 2, 1, 3]) for x in (query, key, value))
    weights = F.softmax(paddle.matmul(query * scale, key, transpose_y=True), axis=-1)
    return paddle.matmul(weights, value).transpose([0, 2, 1, 3]).flatten(2)


def _differentiate(function: Any, shape: AttentionShape) -> list[Tensor]:
    """Returns the result of an attention for random numbers, and its gradients, in float32."""
    generator = np.random.default_rng(0)
    channels = shape.heads * shape.width

    def draw(tokens: int) -> Tensor:
        values = generator.standard_normal((1, tokens, channels)).astype(np.float32)
        return paddle.to_tensor(values).astype(shape.dtype)

    parts = [draw(shape.queries), draw(shape.keys), draw(shape.keys)]
    for part in parts:
        part.stop_gradient = False
    with paddle.enable_grad():  # an evaluation may be the first use
        output = function(*parts, shape.heads, shape.width**-0.5)
        gradients = paddle.grad(output, parts, draw(shape.queries))
    return [tensor.detach().astype("float32") for tensor in (output, *gradients)]
