"""Many tensors in one buffer per dtype, so that one operator works on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import paddle
from paddle import Tensor

# Each tensor starts at a multiple of this many elements. For dtypes of 2 bytes or more that is 256 bytes, the
# alignment of Paddle's allocator, on which kernels rely. It counts elements, not bytes, so that a weight, its
# gradient and its velocity have the same offsets in their buffers, whatever their dtypes.
ALIGNMENT = 128


class FlatBuffers:
    """Memory for copies of tensors: one buffer per dtype, in which tensors keep their order.

    Args:
        tensors: Tensors whose shapes and dtypes the memory has room for.
        rows: Number of copies of the whole.

    Attributes:
        memories: One tensor per dtype, [rows, words] int64, zeros at first. Operators that only move data run
            faster on 8-byte words.
        buffers: First row of each memory in its own dtype, [elements].
        views: One view of the first row per tensor, in their order.
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
        """Returns the memory from tensor ``first`` to tensor ``last``, both of one dtype, [elements].

        Args:
            first: Index of a tensor.
            last: Index of the same or a later tensor.
        """
        length = self._starts[last] + self._tensors[last].size - self._starts[first]
        return self._view(first, last, [length])

    def _view(self, first: int, last: int, shape: list[int]) -> Tensor:
        buffer = self._buffer_of[self._tensors[first].dtype]
        view = buffer._slice(self._starts[first], self._starts[last] + self._tensors[last].size)
        view.get_tensor()._set_dims(shape)
        return view

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def adopt(self) -> None:
        """Moves the tensors themselves into this memory. They stay the same objects with the same values."""
        for tensor, view in zip(self._tensors, self.views, strict=True):
            view.copy_(tensor.detach(), True)
            view._share_buffer_to(tensor)
            tensor.get_tensor()._set_dims(view.shape)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copies the values of tensors of the same shapes and dtypes into this memory."""
        for buffer, places in zip(self.buffers, self._places.values(), strict=True):
            pieces = []
            for place in places:
                pieces.append(tensors[place].reshape([-1]))
                if place in self._padding:
                    pieces.append(self._padding[place])
            buffer.copy_(paddle.concat(pieces), False)

    def add(self, other: FlatBuffers) -> None:
        """Adds the values of buffers of the same layout."""
        for buffer, addend in zip(self.buffers, other.buffers, strict=True):
            buffer.add_(addend)

    def zero(self) -> None:
        """Sets all values to zero."""
        for buffer in self.buffers:
            buffer.zero_()


class UpdateSnapshot:
    """Saves the values of tensors, and restores them on a condition that only the device knows.

    The tensors move into flat buffers on the current device, so saving and restoring take a few operators
    however many tensors there are. They stay the same objects with the same values.

    Args:
        tensors: Tensors that an update changes.

    Attributes:
        flat: Memory of the tensors. Its second row holds the saved values.
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
        """Restores the saved values where ``condition``, [1] bool, holds. The host does not wait for it."""
        row = condition.logical_not().astype("int32")  # 0: onto the live row; 1: onto the saved row itself
        for memory, _, saved in self._rows:
            paddle.scatter_(memory, row, saved)
