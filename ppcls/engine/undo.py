"""Taking an optimizer's step back on the device, where a condition that only the device knows holds."""

from __future__ import annotations

from collections.abc import Iterable

import paddle
from paddle import Tensor

from ppcls.engine.flat import Flat


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
