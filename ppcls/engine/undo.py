"""Taking an optimizer's step back on the device, where a condition that only the device knows holds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import paddle
from paddle import Tensor

_ALIGNMENT = 256  # bytes; what Paddle's allocator gives each tensor, and kernels count on


class Undo:
    """Keeps what tensors were, and puts it back if asked to.

    The tensors move into one buffer a dtype, on the present device, so that keeping and putting back are
    a few operators however many tensors there are. They stay the same objects, with the same values.

    Args:
        tensors: What a step changes.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        sort = sorted(tensors, key=lambda tensor: str(tensor.dtype))
        self._pairs = [_Pair(list(group)) for _, group in groupby(sort, key=lambda tensor: tensor.dtype)]

    def keep(self) -> None:
        """Remembers the present values."""
        for pair in self._pairs:
            pair.keep()

    def back_if(self, condition: Tensor) -> None:
        """Puts the kept values back where ``condition``, [1] bool, holds; the host does not wait for it."""
        with paddle.no_grad():
            row = condition.logical_not().astype("int32")
            for pair in self._pairs:
                pair.put(row)


class _Pair:
    """Two rows of memory: the tensors themselves, and their copy."""

    def __init__(self, tensors: list[Tensor]) -> None:
        starts, length = [], 0
        for tensor in tensors:
            starts.append(length)
            unit = _ALIGNMENT // tensor.element_size()
            length += -(-tensor.size // unit) * unit
        memory = paddle.zeros([2 * length], tensors[0].dtype)
        for tensor, start in zip(tensors, starts, strict=True):
            _move(tensor, memory._slice(start, start + tensor.size))
        self._live, self._kept = memory._slice(0, length), memory._slice(length, 2 * length)
        for rows, each in ((1, self._live), (1, self._kept), (2, memory)):
            each.get_tensor()._set_dims([rows, length])
        self._rows = memory

    def keep(self) -> None:
        self._kept.copy_(self._live, False)

    def put(self, row: Tensor) -> None:
        """Writes the copy into a row: onto the tensors, or onto itself."""
        paddle.scatter_(self._rows, row, self._kept)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _move(tensor: Tensor, memory: Tensor) -> None:
    shape = tensor.shape
    memory.copy_(tensor.detach().reshape([-1]), True)
    memory._share_buffer_to(tensor)
    tensor.get_tensor()._set_dims(shape)
