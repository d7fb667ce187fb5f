"""Attention in half precision that never stores the matrix of scores, with an optional bias and windows.

Paddle's FlashAttention has no gradient of a bias, and Paddle's package for CUDA 11 has none for Hopper GPUs.
Without a bias, `ppcls.arch.kernels.flash_attention` uses it for heads of other widths.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.fused.amp import name_of
from ppcls.arch.fused.cuda import Kernels, address, contiguous, kernels

_THREADS = 128  # threads per block; the same number as THREADS in attention.cu
_WARPS = 4  # of a block
_STRIP = 16  # tokens per warp
_LARGEST_TILE = 208  # tokens in shared memory; an image of 224 pixels has 197 tokens
_MOST_BIASED = 64  # tokens of a sequence whose bias has a gradient
_WIDTHS = (32, 64)  # widths of a head
DTYPES = (paddle.float16, paddle.bfloat16)
_BLOCKS_PER_MULTIPROCESSOR = 8  # of the kernel that adds up gradients of the bias


@dataclass(frozen=True)
class Sequences:
    """How tokens form sequences, in which they attend to one another.

    Attributes:
        heads: Number of heads.
        scale: Factor for the products of queries and keys.
        order: [windows, tokens per window] int32: the tokens of an image in each of its windows; None if each
            image is one sequence.
    """

    heads: int
    scale: float
    order: Tensor | None = None


def find_problem(width: int, dtype: Any, bias: Tensor | None, tokens: int) -> str | None:
    """Returns why the kernels can't compute an attention with its gradients; None if they can.

    Args:
        width: Width of a head.
        dtype: Dtype of queries, keys and values.
        bias: What is added to the scores; None for nothing.
        tokens: Larger number of queries or keys of a sequence.
    """
    trained = bias is not None and not bias.stop_gradient
    if dtype not in DTYPES:
        return f"the kernels need float16 or bfloat16, got {name_of(dtype)}"
    if width not in _WIDTHS:
        return f"the kernels need heads of width 32 or 64, got {width}"
    if trained and tokens > _MOST_BIASED:
        return f"the kernels have gradients of a bias for at most {_MOST_BIASED} tokens, got {tokens}"
    return None


def attend_packed(tokens: Tensor, bias: Tensor | None, sequences: Sequences) -> Tensor:
    """Returns the self-attention of tokens whose queries, keys and values are one tensor.

    Args:
        tokens: [B, N, 3 * C] float16 or bfloat16: queries, keys and values of all heads.
        bias: [W, heads, M, M] float32, which is added to the scores, or None. A sequence of M tokens uses row
            number ``sequence % W``.
        sequences: Number of heads, scale and windows.

    Returns:
        Mixed values, [B, N, C].
    """
    tensors = (contiguous(tokens),)
    return _apply(_PackedAttention, _BiasedPackedAttention, tensors, bias, sequences)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, sequences: Sequences) -> Tensor:
    """Returns the attention of queries [B, N, C] to keys and values [B, M, C]. See `attend_packed`."""
    tensors = tuple(map(contiguous, (query, key, value)))
    return _apply(_Attention, _BiasedAttention, tensors, bias, sequences)


def _apply(
    plain: type[PyLayer],
    biased: type[PyLayer],
    tensors: tuple[Tensor, ...],
    bias: Tensor | None,
    sequences: Sequences,
) -> Tensor:
    output: Tensor
    if bias is None:
        output = plain.apply(*tensors, sequences)
    else:
        output = biased.apply(*tensors, contiguous(bias.astype("float32")), sequences)
    return output


class _PackedAttention(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `attend_packed` without a bias."""

    @staticmethod
    def forward(context: Any, tokens: Tensor, sequences: Sequences) -> Tensor:
        return _forward(context, _PackedOperands(tokens, sequences), None)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (tokens,), _ = _backward(context, gradient)
        return tokens


class _BiasedPackedAttention(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `attend_packed` with a bias."""

    @staticmethod
    def forward(context: Any, tokens: Tensor, bias: Tensor, sequences: Sequences) -> Tensor:
        return _forward(context, _PackedOperands(tokens, sequences), bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, bias = _backward(context, gradient)
        return (*tensors, bias)


class _Attention(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `attend` without a bias."""

    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor, sequences: Sequences) -> Tensor:
        return _forward(context, _Operands(query, key, value, sequences), None)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(context, gradient)[0]


class _BiasedAttention(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `attend` with a bias."""

    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, sequences: Sequences
    ) -> Tensor:
        return _forward(context, _Operands(query, key, value, sequences), bias)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, bias = _backward(context, gradient)
        return (*tensors, bias)


def _forward(context: Any, operands: _Operands, bias: Tensor | None) -> Tensor:
    output, logarithms = operands.attend(bias)
    context.save_for_backward(*operands.tensors, bias, output, logarithms)
    context.sequences = operands.sequences
    context.kind = type(operands)
    context.bias_needed = bias is not None and not bias.stop_gradient
    return output


def _backward(context: Any, gradient: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Returns the gradients of the tensors with queries, keys and values, and of the bias."""
    *tensors, bias, output, logarithms = context.saved_tensor()
    operands = context.kind(*tensors, context.sequences)
    saved = (output, contiguous(gradient), bias, logarithms)
    results: tuple[tuple[Tensor, ...], Tensor | None] = operands.gradients(saved, context.bias_needed)
    return results


class _Operands:
    """Queries, keys and values, and the launches of the kernels.

    Attributes:
        tensors: Tensors that contain queries, keys and values.
        sequences: Number of heads, scale and windows.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, sequences: Sequences) -> None:
        self._set((query, key, value), query.shape[-1], sequences)

    def _set(self, tensors: tuple[Tensor, ...], width: int, sequences: Sequences) -> None:
        self.tensors = tensors
        self.sequences = sequences
        self._width = width
        query, key = tensors[0], tensors[min(1, len(tensors) - 1)]
        batch, tokens = query.shape[:2]
        windows = 1 if sequences.order is None else sequences.order.shape[0]
        self._queries = tokens // windows
        self._keys = key.shape[1] // windows
        self._windows = windows
        self._count = batch * windows
        self._output = [batch, tokens, width]
        self._dtype = query.dtype
        self._strides = (query.shape[-1], key.shape[-1], width)
        self._head = width // sequences.heads

    def _addresses(self, tensors: tuple[Tensor, ...]) -> tuple[ctypes.c_void_p, ...]:
        """Returns the addresses of the first query, key and value."""
        return tuple(map(address, tensors))

    def attend(self, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the mixed values, and the logarithm of the sum of all weights per query."""
        output = paddle.empty(self._output, self._dtype)
        logarithms = self._numbers()
        operands = (*self._addresses(self.tensors), address(output), address(bias), self._order())
        tile = _tile(self._keys)
        parts = _strip_parts(self._queries, self._keys)
        last = (tile, parts)
        blocks = self._count * parts
        self._launch("attention", blocks, (*operands, address(logarithms)), bias, self._tiles(tile), last)
        return output, logarithms

    def gradients(
        self, saved: tuple[Tensor, Tensor, Tensor | None, Tensor], bias_needed: bool
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Returns the gradients of `tensors` and of the bias.

        Args:
            saved: Output, its gradient, bias, and logarithms.
            bias_needed: Whether to compute the gradient of the bias.
        """
        output, gradient, bias, logarithms = saved
        results = tuple(paddle.empty_like(tensor) for tensor in self.tensors)
        dquery, dkey, dvalue = self._addresses(results)
        products = self._numbers()
        sums = None
        groups = self._count
        parts = 1
        if bias_needed:
            assert bias is not None
            groups = bias.shape[0]
            parts = self._bias_parts(groups)
            sums = paddle.empty([parts, *bias.shape])
        sources = self._addresses(self.tensors)
        shared = (address(gradient), address(bias), self._order(), address(logarithms))
        tile = _tile(self._keys)
        operands = (*sources, address(output), *shared, dquery, address(products), address(sums))
        last = (tile, self._count, groups, parts)
        kernel = "attention_query_gradient"
        self._launch(kernel, groups * parts, operands, bias, self._tiles(tile), last)
        tile = _tile(self._queries)
        parts = _strip_parts(self._keys, self._queries)
        operands = (*sources, *shared, address(products), dkey, dvalue)
        memory = self._tiles(tile) + 8 * tile  # with a logarithm and a product per query
        kernel = "attention_key_gradient"
        self._launch(kernel, self._count * parts, operands, bias, memory, (tile, parts))
        return results, None if sums is None else sums.sum(0)

    def _numbers(self) -> Tensor:
        """Returns memory for one number per query and head."""
        return paddle.empty([self._count * self.sequences.heads * self._queries])

    def _tiles(self, tile: int) -> int:
        """Returns the size of two tiles in bytes."""
        return 4 * self._head * tile

    def _bias_parts(self, groups: int) -> int:
        """Returns the number of blocks that process the sequences with the same window of the bias."""
        blocks = _BLOCKS_PER_MULTIPROCESSOR * self._get_kernels(biased=True).multiprocessors
        return int(max(1, min(self._count // groups, blocks // (groups * self.sequences.heads))))

    def _order(self) -> ctypes.c_void_p:
        return address(self.sequences.order)

    def _get_kernels(self, *, biased: bool) -> Kernels:
        return kernels("attention.cu", self._dtype, f"HEAD={self._head}", f"BIASED={int(biased)}")

    def _launch(
        self,
        kernel: str,
        sequences: int,
        operands: tuple[ctypes.c_void_p, ...],
        bias: Tensor | None,
        memory: int,
        last: tuple[int, ...],
    ) -> None:
        """Launches a kernel with one block per head and sequence.

        Args:
            kernel: Name of the kernel.
            sequences: Number of blocks per head.
            operands: Pointers.
            bias: Bias of the attention.
            memory: Shared memory of a block in bytes.
            last: Arguments of the kernel after the sizes and strides.
        """
        heads = self.sequences.heads
        sizes = (self._queries, self._keys, heads, self._windows, 1 if bias is None else bias.shape[0])
        numbers = map(ctypes.c_int, (*sizes, *self._strides, *last))
        scale = ctypes.c_float(self.sequences.scale)
        library = self._get_kernels(biased=bias is not None)
        grid = (heads * sequences, 1)
        library.launch(kernel, grid, (_THREADS, 1), *operands, scale, *numbers, shared=memory)


def _tile(tokens: int) -> int:
    """Returns the number of tokens in shared memory at a time, a multiple of `_STRIP`."""
    return min(-(-tokens // _STRIP) * _STRIP, _LARGEST_TILE)


def _strip_parts(tokens: int, others: int) -> int:
    """Returns the number of blocks that process the strips of a sequence.

    A block reads the other tokens once if they fit in shared memory, else once per `_WARPS` strips.
    """
    return 1 if others <= _LARGEST_TILE else -(-tokens // (_STRIP * _WARPS))


class _PackedOperands(_Operands):
    """Queries, keys and values in one tensor [B, N, 3 * C]."""

    def __init__(self, tokens: Tensor, sequences: Sequences) -> None:
        self._set((tokens,), tokens.shape[-1] // 3, sequences)

    def _addresses(self, tensors: tuple[Tensor, ...]) -> tuple[ctypes.c_void_p, ...]:
        start = tensors[0].data_ptr()
        step = self._width * tensors[0].element_size()
        return tuple(ctypes.c_void_p(start + part * step) for part in range(3))
