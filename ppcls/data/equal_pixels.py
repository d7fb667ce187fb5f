"""An order whose steps have the fewer images the larger these are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ppcls.config.input_size import EqualPixels
from ppcls.data.input_size import drawn_size
from ppcls.data.order import Cursor, Order


@dataclass(frozen=True, kw_only=True)
class EqualPixelsOrder(Order):
    """An `Order` with a number of images for each step; ``batch_size`` is the most that one has on a rank.

    Attributes:
        sizes: Sides of the images, and how many of them a rank has in a step; multiples of ``group``.
    """

    sizes: EqualPixels

    @cached_property
    def _starts(self) -> list[int]:
        """For each step, and behind the last one, the samples of all ranks before it."""
        starts = [0]
        while starts[-1] < self.size:
            starts.append(starts[-1] + self.rows(len(starts) - 1) * self.world)
        return starts

    def __len__(self) -> int:
        """Returns the steps of an epoch."""
        full = self._starts[-1] == self.size
        return len(self._starts) - 1 - (self.drop_last and not full)

    def start(self, step: int) -> int:
        """Returns how many samples full steps before this one have, of all ranks."""
        return self._starts[step]

    def rows(self, step: int) -> int:
        """Returns the rows of a step on this rank, padding included."""
        return self.sizes.rows[drawn_size(self.sizes, self.seed, step)]

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` together with what gives it its meaning: the sizes too, and the ranks."""
        state = super().state_dict(cursor)
        pairs = zip(self.sizes.sizes, self.sizes.rows, strict=True)
        told = ", ".join(f"{rows} of {side} pixels" for side, rows in pairs)
        return {**state, "sampler": f"{state['sampler']}, on each of {self.world} ranks {told}"}

    def for_any_world(self, state: dict[str, Any]) -> str:  # noqa: ARG002
        """Returns nothing: what each rank takes in a step is given, so an epoch goes on with as many."""
        return ""
