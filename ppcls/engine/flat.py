"""Many tensors in one buffer a dtype, so that what is done to all of them is one operator."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
from paddle import Tensor

_ALIGNMENT = 256  # bytes; what Paddle's allocator gives each tensor, and kernels count on


class Flat:
    """Room for tensors of the shapes and dtypes of others.

    Attributes:
        buffers: One a dtype, [elements], zeros at first.
        views: One for each tensor, in their order, as windows on the buffers.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._like = list(tensors)
        self._groups: dict[paddle.dtype, list[int]] = {}
        for place, tensor in enumerate(self._like):
            self._groups.setdefault(tensor.dtype, []).append(place)
        self._padding: dict[int, Tensor] = {}
        views: list[Tensor | None] = [None] * len(self._like)
        self.buffers: list[Tensor] = []
        for dtype, places in self._groups.items():
            starts, length = [], 0
            for place in places:
                tensor = self._like[place]
                unit = _ALIGNMENT // tensor.element_size()
                starts.append(length)
                padding = -tensor.size % unit
                if padding:
                    self._padding[place] = paddle.zeros([padding], dtype)
                length += tensor.size + padding
            buffer = paddle.zeros([length], dtype)
            self.buffers.append(buffer)
            for place, start in zip(places, starts, strict=True):
                shape = self._like[place].shape
                view = buffer._slice(start, start + self._like[place].size)
                view.get_tensor()._set_dims(shape)
                views[place] = view
        self.views = [view for view in views if view is not None]

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
