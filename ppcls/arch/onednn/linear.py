"""Linear layers and products of matrices in float32 on a CPU.

Decisions:
- On an AMD processor with AVX-512, oneDNN's products of matrices reach 230 to 245 GFLOP/s per core, and those
  of Paddle 3.3.1, which calls MKL, 41 to 46 (1,576 tokens, 384 to 1,152 channels, one thread).
- Linear layers use products of matrices, not oneDNN's operation for linear layers (inner product), whose
  gradient of the input is half as fast (75 to 105 GFLOP/s instead of 170 to 220), because it reorders the
  weights.
"""

from __future__ import annotations

import math
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.onednn.library import Argument, Primitive, describe_primitive, keep_primitives, tensor_format


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns ``x @ weight + bias``.

    Args:
        x: [..., K] float32.
        weight: [K, N] float32.
        bias: [N] float32; None for no bias.
    """
    output: Tensor
    if bias is None:
        output = _CpuLinear.apply(x.contiguous(), weight.contiguous())
    else:
        output = _CpuBiasedLinear.apply(x.contiguous(), weight.contiguous(), bias)
    return output


def multiply_matrices(x: Tensor, y: Tensor, *, transposed: bool) -> Tensor:
    """Returns the products of pairs of matrices.

    Args:
        x: [..., N, K] float32.
        y: [..., K, M] float32 with the same leading axes, or [..., M, K] if it is ``transposed``.
        transposed: Whether to transpose the last two axes of ``y``.

    Returns:
        Products, [..., N, M].
    """
    output: Tensor = _CpuMatrixProduct.apply(x.contiguous(), y.contiguous(), transposed)
    return output


class _CpuLinear(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `multiply` without a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        return _forward(context, x, weight, None)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, gradient)[:2]


class _CpuBiasedLinear(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `multiply` with a bias."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _forward(context, x, weight, bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(context, gradient)


def _forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    context.needed = [tensor is not None and not tensor.stop_gradient for tensor in (x, weight, bias)]
    context.save_for_backward(x, weight)
    result = _product(_rows(x), weight, bias=bias)
    return result.reshape([*x.shape[:-1], weight.shape[1]])


def _gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Returns the gradients of the input, the weight and the bias; None for those that are not needed."""
    x, weight = context.saved_tensor()
    x_needed, weight_needed, bias_needed = context.needed
    gradient = _rows(gradient.contiguous())
    dx = dweight = dbias = None
    if x_needed:
        dx = _product(gradient, weight, second=True).reshape(x.shape)
    if weight_needed:
        dweight = _product(_rows(x), gradient, first=True)
    if bias_needed:
        # Paddle's sum over rows uses one thread, and took as long as the gradient of a small weight.
        dbias = _product(paddle.ones([1, gradient.shape[0]]), gradient).reshape([-1])
    return dx, dweight, dbias


def _rows(x: Tensor) -> Tensor:
    """Returns a contiguous tensor [..., K] as a matrix [N, K]."""
    return x if x.ndim == 2 else x.reshape([-1, x.shape[-1]])


class _CpuMatrixProduct(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `multiply_matrices`."""

    @staticmethod
    def forward(context: Any, x: Tensor, y: Tensor, transposed: bool) -> Tensor:
        context.transposed = transposed
        context.needed = [not tensor.stop_gradient for tensor in (x, y)]
        context.save_for_backward(x, y)
        return _product(x, y, second=transposed)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y = context.saved_tensor()
        gradient = gradient.contiguous()
        x_needed, y_needed = context.needed
        dx = _product(gradient, y, second=not context.transposed) if x_needed else None
        dy = None
        if y_needed and context.transposed:
            dy = _product(gradient, x, first=True)
        elif y_needed:
            dy = _product(x, gradient, first=True)
        return dx, dy


def _product(
    x: Tensor, y: Tensor, *, first: bool = False, second: bool = False, bias: Tensor | None = None
) -> Tensor:
    """Returns the products of contiguous matrices.

    Args:
        x: [..., N, K], or [..., K, N] if ``first``.
        y: [..., K, M], or [..., M, K] if ``second``.
        first: Whether to transpose the last two axes of ``x``.
        second: Whether to transpose the last two axes of ``y``.
        bias: [M], which is added to each row of the products; None for nothing.
    """
    leading = x.shape[:-2]
    rows, inner = _sides(x, first)
    columns = _sides(y, second)[1]
    result = paddle.empty([*leading, rows, columns])
    sides = (math.prod(leading), rows, inner, columns)
    tensors = {Argument.SOURCE: x, Argument.WEIGHTS: y, Argument.TARGET: result}
    if bias is not None:
        tensors[Argument.BIAS] = bias
    _matrix_product(sides, first, second, bias is not None).run(tensors)
    return result


def _sides(x: Tensor, transposed: bool) -> tuple[int, int]:
    rows, columns = x.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


@keep_primitives
def _matrix_product(sides: tuple[int, int, int, int], first: bool, second: bool, biased: bool) -> Primitive:
    """Returns the primitive that multiplies pairs of matrices [N, K] and [K, M].

    Args:
        sides: Number of pairs, N, K and M.
        first: Whether the memory order of the first matrix is that of [K, N].
        second: Whether the memory order of the second matrix is that of [M, K].
        biased: Whether a bias is added.
    """
    count, rows, inner, columns = sides
    formats = {
        Argument.SOURCE: tensor_format([count, rows, inner], _order(rows, inner, first)),
        Argument.WEIGHTS: tensor_format([count, inner, columns], _order(inner, columns, second)),
        Argument.TARGET: tensor_format([count, rows, columns], "abc"),
    }
    bias = None
    if biased:
        bias = formats[Argument.BIAS] = tensor_format([1, 1, columns], "abc")
    operands = (formats[Argument.SOURCE], formats[Argument.WEIGHTS], bias, formats[Argument.TARGET])
    return Primitive(describe_primitive("matmul", *operands), formats)


def _order(rows: int, columns: int, transposed: bool) -> str:
    """Returns the memory order of pairs of matrices [rows, columns].

    A row or a column has the same memory in both orders. oneDNN 3.6 reads beyond the end of a transposed row,
    and returns wrong products.
    """
    return "acb" if transposed and rows > 1 and columns > 1 else "abc"
