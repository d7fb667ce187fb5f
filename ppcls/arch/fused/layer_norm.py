"""Layer norm of tokens together with the sums of a residual network around it.

A transformer block adds a branch to the residual stream and normalizes the sum. As single operators, these
read and write each token five times in the forward pass alone. Here, both passes access each tensor once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from ppcls.arch.fused.amp import cast
from ppcls.arch.fused.cuda import Kernels, address, contiguous, find_vector_problem, kernels, vector_length
from ppcls.arch.fused.sum_rows import sum_rows
from ppcls.arch.kernels.paddle_layers import epsilon_of

_THREADS = 256  # threads per block; the same number as THREADS in tokens.cu
_WARP = 32
_MAX_CHUNKS = 8  # vectors of a row per thread; the registers of a thread limit this number
_BLOCKS_PER_MULTIPROCESSOR = 2  # of kernels that add up rows


@dataclass(frozen=True)
class Branch:
    """What is added to the residual stream: ``factors * scale * (value + bias)``.

    Attributes:
        value: [B, ..., C] float16 or bfloat16.
        scale: [C] float32, the learned factor per channel (layer scale); None for no factor.
        factors: [B] float32 without gradient, the factor per image (stochastic depth); None for no factor.
        bias: [C] float32, the bias of the last layer, only for `add`; None if ``value`` contains it. Its
            gradient is float32: with a scale of 1e-6, as in a new ConvNeXt, it would vanish in float16.
    """

    value: Tensor
    scale: Tensor | None = None
    factors: Tensor | None = None
    bias: Tensor | None = None


def find_problem(channels: int, dtype: Any) -> str | None:
    """Returns why the kernels can't process tokens of a number of channels and a dtype; None if they can."""
    most = _MAX_CHUNKS * _WARP * vector_length(dtype)
    problem = find_vector_problem(channels, dtype)
    if problem is None and channels > most:
        problem = f"the kernels have at most {most} channels, got {channels}"
    return problem


def normalize_fork(norm: nn.LayerNorm, x: Tensor, dtype: Any) -> tuple[Tensor, Tensor]:
    """Returns ``norm(x)``, and ``x`` for a second consumer such as a shortcut.

    In the backward pass, the kernel adds the gradient of the second consumer.

    Args:
        norm: Layer over the last axis.
        x: [..., C] float32, or of the dtype of the result.
        dtype: Dtype of the result: float32, float16 or bfloat16.
    """
    y, same = _LayerNorm.apply(contiguous(x), *_parameters(norm), epsilon_of(norm), dtype)
    return y, same


def normalize(norm: nn.LayerNorm, x: Tensor, dtype: Any) -> Tensor:
    """Returns ``norm(x)``. See `normalize_fork`."""
    output: Tensor = _PlainLayerNorm.apply(contiguous(x), *_parameters(norm), epsilon_of(norm), dtype)
    return output


def add_normalize(norm: nn.LayerNorm, x: Tensor, branch: Branch) -> tuple[Tensor, Tensor]:
    """Adds a branch to ``x``; returns the layer norm of the sum in the branch's dtype, and the sum.

    Args:
        norm: Layer over the last axis.
        x: [B, ..., C] float32, or of the dtype of the branch.
        branch: The branch.
    """
    y, total = _AddLayerNorm.apply(
        contiguous(x),
        contiguous(branch.value),
        *_parameters(norm),
        branch.scale,
        branch.factors,
        epsilon_of(norm),
    )
    return y, total


def add(x: Tensor, branch: Branch) -> Tensor:
    """Returns the sum of ``x`` and a branch. See `add_normalize`."""
    operands = (contiguous(branch.value), branch.scale, branch.factors, branch.bias)
    total: Tensor = _AddBranch.apply(contiguous(x), *operands)
    return total


def _parameters(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return cast(norm.weight, paddle.float32), cast(norm.bias, paddle.float32)


class _LayerNorm(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `normalize_fork`."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: Any
    ) -> tuple[Tensor, Tensor]:
        y, _, statistics = TokenKernels(x, dtype).normalize(x, None, weight, bias, epsilon)
        context.save_for_backward(x, weight, *statistics)
        context.needed = [not tensor.stop_gradient for tensor in (x, weight, bias)]
        # Return a view of x. If an operation returns x itself, Paddle assumes a change in place.
        return y, paddle.view(x, x.shape)

    @staticmethod
    def backward(context: Any, gradient: Tensor, other: Tensor) -> tuple[Tensor | None, ...]:
        return _norm_gradients(context, gradient, contiguous(other))


class _PlainLayerNorm(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `normalize`."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dtype: Any) -> Tensor:
        y, _, statistics = TokenKernels(x, dtype).normalize(x, None, weight, bias, epsilon)
        context.save_for_backward(x, weight, *statistics)
        context.needed = [not tensor.stop_gradient for tensor in (x, weight, bias)]
        return y

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _norm_gradients(context, gradient, None)


def _norm_gradients(context: Any, gradient: Tensor, other: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, mean, inverse = context.saved_tensor()
    launcher = TokenKernels(x, gradient.dtype)
    dx, _, dweight, dbias = launcher.normalize_gradients(
        contiguous(gradient), x, other, (weight, mean, inverse), None
    )
    return _needed(context.needed, (dx, dweight, dbias))


class _AddLayerNorm(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `add_normalize`."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        value: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        factors: Tensor | None,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        branch = Branch(value, scale, factors)
        y, total, statistics = TokenKernels(x, value.dtype).normalize(x, branch, weight, bias, epsilon)
        context.save_for_backward(total, value, weight, *statistics, scale, factors)
        parameters = (weight, bias, *(() if scale is None else (scale,)))
        context.needed = [not tensor.stop_gradient for tensor in (x, value, *parameters)]
        context.has_factors = factors is not None
        return y, total

    @staticmethod
    def backward(context: Any, gradient: Tensor, other: Tensor) -> tuple[Tensor | None, ...]:
        total, value, weight, mean, inverse, scale, factors = context.saved_tensor()
        branch = Branch(value, scale, factors)
        launcher = TokenKernels(total, value.dtype)
        dx, dbranch, dweight, dbias = launcher.normalize_gradients(
            contiguous(gradient), total, contiguous(other), (weight, mean, inverse), branch
        )
        results: tuple[Tensor | None, ...] = (dx, dbranch, dweight, dbias)
        if scale is not None:
            results = (*results, launcher.add_gradients(dx, branch)[1])
        return (*_needed(context.needed, results), *((None,) if context.has_factors else ()))


class _AddBranch(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `add`."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        value: Tensor,
        scale: Tensor | None,
        factors: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        context.save_for_backward(value if scale is not None else None, scale, factors, bias)
        context.dtype = value.dtype
        # Paddle expects one gradient per tensor; `factors` need none.
        context.needed = [
            tensor is not factors and not tensor.stop_gradient
            for tensor in (x, value, scale, factors, bias)
            if tensor is not None
        ]
        return TokenKernels(x, value.dtype).add(x, Branch(value, scale, factors, bias))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        value, scale, factors, bias = context.saved_tensor()
        gradient = contiguous(gradient)
        dbranch, dscale, dbias = TokenKernels(gradient, context.dtype).add_gradients(
            gradient, Branch(value, scale, factors, bias)
        )
        pairs = zip((scale, factors, bias), (dscale, None, dbias), strict=True)
        others = [result for operand, result in pairs if operand is not None]
        return _needed(context.needed, (gradient, dbranch, *others))


def _needed(needed: list[bool], gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Returns the gradients, and None for each gradient that Paddle does not need."""
    return tuple(gradient if used else None for used, gradient in zip(needed, gradients, strict=True))


class TokenKernels:
    """Launches the kernels of tokens.cu.

    Args:
        stream: Tensor with the shape and dtype of the residual stream.
        dtype: Dtype of normalized tokens and branches.
    """

    def __init__(self, stream: Tensor, dtype: Any) -> None:
        channels = stream.shape[-1]
        self._vectors = channels // vector_length(dtype)
        lanes = _WARP
        while lanes > 1 and self._vectors <= lanes // 2:
            lanes //= 2
        chunks = -(-self._vectors // lanes)
        wide = int(stream.dtype == paddle.float32 and dtype != paddle.float32)
        self._kernels: Kernels = kernels(
            "tokens.cu", dtype, f"LANES={lanes}", f"CHUNKS={chunks}", f"STREAM={wide}"
        )
        self._stream = stream
        self._dtype = dtype
        self._channels = channels
        self._rows = stream.size // channels
        self._rows_per_block = _THREADS // lanes
        self._image_rows = self._rows // stream.shape[0]

    def normalize(
        self, x: Tensor, branch: Branch | None, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
        """Returns the normalized tokens, the sum if there is a branch, and mean and 1 / deviation per row."""
        y = paddle.empty(x.shape, self._dtype)
        total = None if branch is None else paddle.empty_like(x)
        mean = paddle.empty([self._rows])
        inverse = paddle.empty([self._rows])
        tensors = (x, *_operands(branch), weight, bias, total, y, mean, inverse)
        grid = (-(-self._rows // self._rows_per_block), 1)
        self._launch("layer_norm", grid, *map(address, tensors), ctypes.c_float(epsilon), *self._sizes())
        return y, total, (mean, inverse)

    def normalize_gradients(
        self,
        gradient: Tensor,
        x: Tensor,
        other: Tensor | None,
        saved: tuple[Tensor, Tensor, Tensor],
        branch: Branch | None,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Returns the gradients of the residual stream, the branch, the weight and the bias.

        Args:
            gradient: Gradient of the normalized tokens.
            x: What was normalized.
            other: Gradient of ``x`` from its other consumers; None if there are none.
            saved: Weight, and the statistics of `normalize`.
            branch: What was added to get ``x``; None if nothing was.
        """
        weight, mean, inverse = saved
        dx = paddle.empty_like(x)
        dbranch = None if branch is None else paddle.empty_like(branch.value)
        grid = self._summing_grid()
        sums = [paddle.empty([grid[0], self._channels]) for _ in range(2)]
        _, factors, scale = _operands(branch)
        tensors = (gradient, x, other, mean, inverse, weight, factors, scale, dx, dbranch, *sums)
        self._launch("layer_norm_gradient", grid, *map(address, tensors), *self._sizes())
        dweight, dbias = map(sum_rows, sums)
        return dx, dbranch, dweight, dbias

    def add(self, x: Tensor, branch: Branch) -> Tensor:
        """Returns the sum of the residual stream and a branch."""
        total = paddle.empty_like(x)
        count = self._rows * self._vectors
        sizes = (count, self._vectors, self._image_rows)
        tensors = (x, *_operands(branch), branch.bias, total)
        self._launch("add_branch", _flat_grid(count), *map(address, tensors), *map(ctypes.c_int, sizes))
        return total

    def add_gradients(self, gradient: Tensor, branch: Branch) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the gradients of a branch and, if there are any, of its scale and its bias.

        Args:
            gradient: Gradient of the sum.
            branch: What was added. Its value may be None if it has no scale.
        """
        dbranch = paddle.empty(gradient.shape, self._dtype)
        grid = self._summing_grid()
        dscale, dbias = (
            None if operand is None else paddle.empty([grid[0], self._channels])
            for operand in (branch.scale, branch.bias)
        )
        tensors = (gradient, *_operands(branch), branch.bias, dbranch, dscale, dbias)
        self._launch("add_branch_gradient", grid, *map(address, tensors), *self._sizes())
        dscale, dbias = (None if sums is None else sum_rows(sums) for sums in (dscale, dbias))
        if dbias is not None and branch.scale is not None:
            dbias = dbias * branch.scale
        return dbranch, dscale, dbias

    def _summing_grid(self) -> tuple[int, int]:
        most = _BLOCKS_PER_MULTIPROCESSOR * self._kernels.multiprocessors
        return min(most, -(-self._rows // self._rows_per_block)), 1

    def _sizes(self) -> tuple[ctypes.c_int, ...]:
        return tuple(map(ctypes.c_int, (self._rows, self._vectors, self._image_rows)))

    def _launch(self, kernel: str, grid: tuple[int, int], *arguments: Any) -> None:
        self._kernels.launch(kernel, grid, (_THREADS, 1), *arguments)


def _operands(branch: Branch | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return (None, None, None) if branch is None else (branch.value, branch.factors, branch.scale)


def _flat_grid(count: int) -> tuple[int, int]:
    """Returns a grid with one thread per vector."""
    return -(-count // _THREADS), 1
