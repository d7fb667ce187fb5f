"""Host memory that is shared by arrays and tensors, or kept for the next copy of a tensor."""

from __future__ import annotations

from typing import Any

import paddle
from numpy.typing import NDArray
from paddle.base import core


class HostMemory:
    """Host memory that is kept for the next copy of the same tensors.

    New memory is slow, because the operating system provides it page by page at the first write. A copy is
    valid until the next copy.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(array.nbytes for array in self._arrays.values())

    def copy(self, name: str, tensor: paddle.Tensor) -> NDArray[Any]:
        """Returns a copy of a tensor [N] as an array.

        Args:
            name: Name of the memory.
        """
        kept = self._arrays.get(name)
        if kept is None or kept.shape != tuple(tensor.shape):
            kept = self._arrays[name] = tensor.numpy()
        else:
            share_array(kept).copy_(tensor, True)
        return kept


def share_array(array: NDArray[Any]) -> paddle.Tensor:
    """Returns a CPU tensor that shares the memory of an array and holds a reference to the array.

    ``from_dlpack`` of Paddle 2.6 would copy. A copy takes 0.3 ms per image of 224 px in the training process.
    """
    return core.eager.Tensor(array, core.CPUPlace(), persistable=False, zero_copy=True)
