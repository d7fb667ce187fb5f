"""Many tensors in one buffer a dtype, so that what is done to all of them is one operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import paddle
from paddle import Tensor

# Each tensor begins at a multiple of so many elements: at least 256 bytes from 2 bytes on, which Paddle's
# allocator gives each, and kernels count on. In elements, so that a weight, its gradient and its velocity
# lie at the same places in their buffers, whatever their dtypes.
UNIT = 128


class Flat:
    """Room for tensors of the shapes and dtypes of others; those of one dtype lie in the order given.

    Args:
        tensors: What there is to be room for.
        rows: How many times.

    Attributes:
        memories: One a dtype, [rows, words] int64, zeros at first: as words of 8 bytes, for what only moves
            them, which takes operators that go by elements less time.
        buffers: The first row of each in its dtype, [elements].
        views: In that row, one for each tensor, in their order.
    """

    def __init__(self, tensors: Iterable[Tensor], rows: int = 1) -> None:
        self._like = list(tensors)
        self._groups: dict[paddle.dtype, list[int]] = {}
        for place, tensor in enumerate(self._like):
            self._groups.setdefault(tensor.dtype, []).append(place)
        self._starts = [0] * len(self._like)
        self._padding: dict[int, Tensor] = {}
        self.memories: list[Tensor] = []
        self.buffers: list[Tensor] = []
        for dtype, places in self._groups.items():
            length = 0
            for place in places:
                self._starts[place] = length
                padding = -self._like[place].size % UNIT
                if padding:
                    self._padding[place] = paddle.zeros([padding], dtype)
                length += self._like[place].size + padding
            words = length * self._like[places[0]].element_size() // 8
            self.memories.append(paddle.zeros([rows, words], "int64"))
            self.buffers.append(self.memories[-1].view(dtype)._slice(0, 1))
            self.buffers[-1].get_tensor()._set_dims([length])
        self._buffer_of = dict(zip(self._groups, self.buffers, strict=True))
        self.views = [self._view(place, place, tensor.shape) for place, tensor in enumerate(self._like)]

    def window(self, first: int, last: int) -> Tensor:
        """Returns the memory from one tensor to another one of the same dtype, [elements].

        Args:
            first: Place of one among the tensors.
            last: Place of the other, which is not before.
        """
        length = self._starts[last] + self._like[last].size - self._starts[first]
        return self._view(first, last, [length])

    def _view(self, first: int, last: int, shape: list[int]) -> Tensor:
        buffer = self._buffer_of[self._like[first].dtype]
        view = buffer._slice(self._starts[first], self._starts[last] + self._like[last].size)
        view.get_tensor()._set_dims(shape)
        return view

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def move_in(self) -> None:
        """Has the tensors themselves lie here; they stay the same objects, with the same values."""
        for tensor, view in zip(self._like, self.views, strict=True):
            view.copy_(tensor.detach(), True)
            view._share_buffer_to(tensor)
            tensor.get_tensor()._set_dims(view.shape)

    def take(self, tensors: Sequence[Tensor]) -> None:
        """Copies tensors in."""
        for buffer, places in zip(self.buffers, self._groups.values(), strict=True):
            pieces = []
            for place in places:
                pieces.append(tensors[place].reshape([-1]))
                if place in self._padding:
                    pieces.append(self._padding[place])
            buffer.copy_(paddle.concat(pieces), False)

    def add(self, other: Flat) -> None:
        """Adds the values of another of the same layout."""
        for own, theirs in zip(self.buffers, other.buffers, strict=True):
            own.add_(theirs)

    def copy(self, other: Flat) -> None:
        """Takes the values of another of the same layout."""
        for own, theirs in zip(self.buffers, other.buffers, strict=True):
            own.copy_(theirs, False)


class Undo:
    """Keeps what tensors were, and puts it back if asked to.

    The tensors move into one buffer a dtype, on the present device, so that keeping and putting back are
    a few operators however many tensors there are. They stay the same objects, with the same values.

    Args:
        tensors: What a step changes.

    Attributes:
        flat: Where the tensors lie; the second row is for their copies.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.flat = Flat(tensors, rows=2)
        self.flat.move_in()
        self._rows = [(memory, memory._slice(0, 1), memory._slice(1, 2)) for memory in self.flat.memories]

    def keep(self) -> None:
        """Remembers the present values."""
        for _, live, kept in self._rows:
            kept.copy_(live, False)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def back_if(self, condition: Tensor) -> None:
        """Puts the kept values back where ``condition``, [1] bool, holds; the host does not wait for it."""
        row = condition.logical_not().astype("int32")  # onto the tensors, or onto the copies themselves
        for memory, _, kept in self._rows:
            paddle.scatter_(memory, row, kept)
