"""Determines the input size of each step if the size changes during training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any

from ppcls.config.sections.sampler import EqualPixels, InputSize, MultiScale, Progressive
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.specs.rng import Purpose, step_fractions


@singledispatch
def size_at(spec: InputSize, seed: int, cursor: Cursor) -> int:
    """Returns the side of the images in pixels at the step of ``cursor``."""
    raise NotImplementedError(f"size_at has no implementation for {spec.kind}")


@size_at.register
def draw_multi_scale_size(spec: MultiScale, seed: int, cursor: Cursor) -> int:
    """Draws a new size after every ``spec.every`` steps, and returns the size of the step."""
    (drawn,) = step_fractions(seed, cursor.epoch, cursor.step // spec.every, 1, Purpose.SIZE)
    return spec.sizes[int(drawn * len(spec.sizes))]


@size_at.register
def find_progressive_size(spec: Progressive, seed: int, cursor: Cursor) -> int:
    """Returns the size for the epoch of ``cursor``."""
    return spec.sizes[sum(cursor.epoch >= first for first in spec.epochs) - 1]


@size_at.register
def draw_equal_pixels_size(spec: EqualPixels, seed: int, cursor: Cursor) -> int:
    """Draws the size of a step. It is the same in all epochs."""
    return spec.sizes[draw_size_index(spec, seed, cursor.step)]


def draw_size_index(spec: EqualPixels, seed: int, step: int) -> int:
    """Returns the index in ``spec.sizes`` of the size of a step. It is the same in all epochs."""
    (drawn,) = step_fractions(seed, 0, step, 1, Purpose.SIZE)
    return int(drawn * len(spec.sizes))


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
        return self.sizes.rows[draw_size_index(self.sizes, self.seed, step)]

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` and all settings that its meaning depends on, including sizes and ranks."""
        state = super().state_dict(cursor)
        pairs = zip(self.sizes.sizes, self.sizes.rows, strict=True)
        rows = ", ".join(f"{rows} of {side} pixels" for side, rows in pairs)
        return {**state, "sampler": f"{state['sampler']}, on each of {self.world} ranks {rows}"}

    def resume_hint(self, state: dict[str, Any]) -> str:  # noqa: ARG002
        """Returns an empty string, because an epoch can continue only on the same number of ranks."""
        return ""
