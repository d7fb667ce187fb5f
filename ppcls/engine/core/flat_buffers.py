"""Stores many tensors in one buffer per dtype, so that one operator can process all of them.

A tensor that moves into a buffer must stay the same Python object, because the model, the optimizer and CUDA
graphs hold it. Neither Paddle 2.6.2 nor 3.3.1 has a public method that gives a tensor other memory. So this
module uses ``_share_buffer_to`` for that, ``_slice`` for views of a part of a buffer, and ``_set_dims`` for
their shapes. `tests/engine/core/test_flat_buffers.py` checks all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import paddle
from paddle import Tensor

# Each tensor starts at a multiple of this many elements. For dtypes of 2 bytes or more the alignment is at
# least 256 bytes, like that of Paddle's allocator. Kernels rely on it. The unit is elements, not bytes, so a
# weight, its gradient and its velocity have the same offsets in their buffers even if their dtypes differ.
ALIGNMENT = 128


class FlatBuffers:
    """Memory for copies of tensors: one buffer per dtype, in which tensors keep their order.

    Args:
        tensors: Tensors that define the shapes and dtypes of the copies.
        rows: Number of copies of each tensor.

    Attributes:
        memories: One tensor per dtype, [rows, words] int64, initially zero. They are int64 because operators
            that only move data run faster on 8-byte words.
        buffers: The first row of each memory as a tensor of its dtype, [elements].
        views: For each tensor, in order, a view of its copy in the first row.
    """

    def __init__(self, tensors: Iterable[Tensor], rows: int = 1) -> None:
        self._tensors = list(tensors)
        self._places: dict[paddle.dtype, list[int]] = {}
        for place, tensor in enumerate(self._tensors):
            self._places.setdefault(tensor.dtype, []).append(place)
        self._starts = [0] * len(self._tensors)
        self._padding: dict[int, Tensor] = {}
        self.memories: list[Tensor] = []
        self.buffers: list[Tensor] = []
        for dtype, places in self._places.items():
            length = 0
            for place in places:
                self._starts[place] = length
                padding = -self._tensors[place].size % ALIGNMENT
                if padding:
                    self._padding[place] = paddle.zeros([padding], dtype)
                length += self._tensors[place].size + padding
            words = length * self._tensors[places[0]].element_size() // 8
            self.memories.append(paddle.zeros([rows, words], "int64"))
            self.buffers.append(self.memories[-1].view(dtype)._slice(0, 1))
            self.buffers[-1].get_tensor()._set_dims([length])
        self._buffer_of = dict(zip(self._places, self.buffers, strict=True))
        self.views = [self._view(place, place, tensor.shape) for place, tensor in enumerate(self._tensors)]

    def window(self, first: int, last: int) -> Tensor:
        """Returns a view of the first row that covers a range of tensors, [elements].

        Args:
            first: Index of the first tensor of the range.
            last: Index of the last tensor of the range. Must have the same dtype.
        """
        length = self._starts[last] + self._tensors[last].size - self._starts[first]
        return self._view(first, last, [length])

    def cast(self, first: int, last: int, dtype: str) -> list[Tensor]:
        """Returns copies of a range of tensors in another dtype, made by one operator. See `window`."""
        copies = self.window(first, last).astype(dtype)
        begin = self._starts[first]
        views = []
        for place in range(first, last + 1):
            tensor = self._tensors[place]
            views.append(_part(copies, self._starts[place] - begin, tensor.size, tensor.shape))
        return views

    def _view(self, first: int, last: int, shape: list[int]) -> Tensor:
        buffer = self._buffer_of[self._tensors[first].dtype]
        begin = self._starts[first]
        return _part(buffer, begin, self._starts[last] + self._tensors[last].size - begin, shape)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def adopt(self) -> None:
        """Makes the tensors use this memory as their storage. Their identities and values do not change."""
        for tensor, view in zip(self._tensors, self.views, strict=True):
            view.copy_(tensor.detach(), True)
            view._share_buffer_to(tensor)
            tensor.get_tensor()._set_dims(view.shape)

    def fill(self, tensors: Sequence[Tensor], first: int = 0) -> None:
        """Copies the values of consecutive tensors into this memory.

        Args:
            tensors: Tensors of the same shapes and dtypes as those of this memory from index ``first`` on.
            first: Index of the first tensor.
        """
        for places in self._places.values():
            filled = [place for place in places if first <= place < first + len(tensors)]
            pieces = []
            for place in filled:
                pieces.append(tensors[place - first].reshape([-1]))
                if place in self._padding and place != filled[-1]:
                    pieces.append(self._padding[place])
            if pieces:
                self.window(filled[0], filled[-1]).copy_(paddle.concat(pieces), False)

    def copy(self, other: FlatBuffers) -> None:
        """Copies the values of ``other``, which has the same layout, into this memory."""
        for buffer, source in zip(self.buffers, other.buffers, strict=True):
            buffer.copy_(source, False)

    def zero(self) -> None:
        """Sets all values to zero."""
        for buffer in self.buffers:
            buffer.zero_()


def _part(buffer: Tensor, begin: int, size: int, shape: list[int]) -> Tensor:
    """Returns a view of a part of a buffer."""
    view = buffer._slice(begin, begin + size)
    view.get_tensor()._set_dims(shape)
    return view


class UpdateSnapshot:
    """Saves the values of tensors, and restores them if a flag on the device is set.

    The tensors move into flat buffers on the current device, so saving and restoring take only a few
    operators for any number of tensors. The tensors stay the same objects with the same values.

    Args:
        tensors: Tensors that an update changes.

    Attributes:
        flat: Storage of the tensors. Its second row holds the saved values.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.flat = FlatBuffers(tensors, rows=2)
        self.flat.adopt()
        self._rows = [(memory, memory._slice(0, 1), memory._slice(1, 2)) for memory in self.flat.memories]

    def save(self) -> None:
        """Saves the current values."""
        for _, live, saved in self._rows:
            saved.copy_(live, False)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def restore_if(self, condition: Tensor) -> None:
        """Restores the saved values if ``condition``, [1] bool, is True. The host does not wait for it."""
        # Copies the saved row to row 0, the current values, or to itself, row 1, which changes nothing.
        row = condition.logical_not().astype("int32")
        for memory, _, saved in self._rows:
            paddle.scatter_(memory, row, saved)
