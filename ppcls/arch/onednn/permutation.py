"""Tensors with reordered axes in float32 on a CPU.

Decisions:
- Paddle's ``transpose`` returns a view, and its copy of a view computes the place of each element. This copy
  took 17 to 25 ms for 9 MB of tokens with one thread, and oneDNN's copy 0.5 ms. A third of a training step of
  Swin-T was spent in such copies.
- The flag ``FLAGS_use_stride_kernel=0`` makes Paddle's copies as fast, but it also changes what code of users
  computes: in Paddle 3.3.1, ``Tensor.view`` then ignores the new shape, and ``Tensor.unfold`` fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddle import Tensor
from paddle.autograd import PyLayer

from ppcls.arch.onednn.library import Reorder, keep_primitives, tensor_format

_LETTERS = "abcdefghijkl"  # oneDNN's names of axes


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Returns a copy of a tensor with reordered axes.

    Args:
        x: Tensor, float32, with at most 12 axes and at least one element.
        axes: For each axis of the result, the axis of ``x``.
    """
    output: Tensor = _CpuPermutation.apply(x.contiguous(), tuple(axes))
    return output


class _CpuPermutation(PyLayer):  # type: ignore[misc]
    """The differentiable operation of `permute`."""

    @staticmethod
    def forward(context: Any, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        context.axes = axes
        return _permute(x, axes)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        axes = context.axes
        inverse = sorted(range(len(axes)), key=axes.__getitem__)
        return _permute(gradient.contiguous(), tuple(inverse))


def _permute(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    shape = x.shape
    # A copy in the same order would be the tensor itself, which the result of an operation must not be.
    result = x.clone() if (copied := _reorder(tuple(shape), axes).copy(x)) is x else copied
    return result.reshape([shape[axis] for axis in axes])


@keep_primitives
def _reorder(shape: tuple[int, ...], axes: tuple[int, ...]) -> Reorder:
    letters = _LETTERS[: len(shape)]
    target = "".join(letters[axis] for axis in axes)
    return Reorder(tensor_format(shape, letters), tensor_format(shape, target))
