"""Forms batches with fewer images the larger the images are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.sampling.sizes import EqualPixels


@dataclass(frozen=True, kw_only=True)
class EqualPixelsOrder(Order):
    """An `Order` whose number of images per step depends on the size of the images.

    ``batch_size`` is the maximum number of rows per step on one rank.

    Attributes:
        sizes: Sides of the images in pixels, with the number of rows per step on one rank for each side. The
            numbers are multiples of ``group``.
    """

    sizes: EqualPixels

    @cached_property
    def _starts(self) -> list[int]:
        """Number of samples on all ranks before each step, and in the whole epoch as the last item."""
        starts = [0]
        while starts[-1] < self.size:
            starts.append(starts[-1] + self.rows(len(starts) - 1) * self.world)
        return starts

    def __len__(self) -> int:
        """Returns the number of steps per epoch."""
        full = self._starts[-1] == self.size
        return len(self._starts) - 1 - (self.drop_last and not full)

    def start(self, step: int) -> int:
        """Returns the number of samples before a step, on all ranks."""
        return self._starts[step]

    def rows(self, step: int) -> int:
        """Returns the number of rows of a step on this rank, including padding."""
        return self.sizes.rows[self.sizes.index_at(self.seed, step)]

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` and all settings that its meaning depends on, including sizes and ranks."""
        state = super().state_dict(cursor)
        pairs = zip(self.sizes.sizes, self.sizes.rows, strict=True)
        rows = ", ".join(f"{rows} of {side} pixels" for side, rows in pairs)
        return {**state, "sampler": f"{state['sampler']}, on each of {self.world} ranks {rows}"}

    def resume_hint(self, state: dict[str, Any]) -> str:  # noqa: ARG002
        """Returns an empty string, because an epoch can continue only on the same number of ranks."""
        return ""
