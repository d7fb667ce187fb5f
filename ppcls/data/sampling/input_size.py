"""Changes the size of a chain's images from step to step, within one DALI pipeline or set of workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, singledispatch
from typing import Any

import numpy as np

from ppcls.config.sections.sampler import EqualPixels, InputSize, MultiScale, Progressive
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.specs import Op, RandCropImage, ResizeImage
from ppcls.data.transforms.specs.decisions import Decided, Draws, Sides, decide, sides_after
from ppcls.data.transforms.specs.fuse import DecodeRandCrop
from ppcls.data.transforms.specs.rng import Purpose, step_fractions


@singledispatch
def size_at(spec: InputSize, seed: int, cursor: Cursor) -> int:
    """Returns the side of the images at a step, in pixels."""
    raise NotImplementedError(f"input_size knows no {spec.kind}")


@size_at.register
def _(spec: MultiScale, seed: int, cursor: Cursor) -> int:
    (drawn,) = step_fractions(seed, cursor.epoch, cursor.step // spec.every, 1, Purpose.SIZE)
    return spec.sizes[int(drawn * len(spec.sizes))]


@size_at.register
def _(spec: Progressive, seed: int, cursor: Cursor) -> int:
    return spec.sizes[sum(cursor.epoch >= first for first in spec.epochs) - 1]


@size_at.register
def _(spec: EqualPixels, seed: int, cursor: Cursor) -> int:
    return spec.sizes[draw_size_index(spec, seed, cursor.step)]


def draw_size_index(spec: EqualPixels, seed: int, step: int) -> int:
    """Returns which of the sizes a step of every epoch has."""
    (drawn,) = step_fractions(seed, 0, step, 1, Purpose.SIZE)
    return int(drawn * len(spec.sizes))


class VariableSize(Transform):
    """The transform that gives a chain's images their size, when that size changes."""

    part: Any

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Random numbers of the transform."""
        return int(self.part.draws)

    @property
    def crop(self) -> ResizeImage | RandCropImage:
        """The transform that resizes."""
        found: ResizeImage | RandCropImage = (
            self.part.crop if isinstance(self.part, DecodeRandCrop) else self.part
        )
        return found

    def after(self, state: ImageState) -> ImageState:
        """Returns the state after the transform."""
        after: ImageState = self.part.after(state)
        return after


@decide.register
def _(spec: VariableSize, draws: Draws, sides: Sides) -> Decided:
    """The transform's own decisions, and the size (width, height) to make, [N, 2] float32."""
    size = np.array(spec.crop.size, np.float32)
    return *decide(spec.part, draws, sides), np.tile(size, (len(sides), 1))


@sides_after.register
def _(spec: VariableSize, sides: Sides, decided: Decided) -> Sides:
    return sides_after(spec.part, sides, decided[:-1])


@lru_cache(maxsize=64)
def resize_chain(ops: tuple[Op, ...], size: int) -> tuple[Op, ...]:
    """Returns a chain, fused or not, that makes square images of ``size``; its sizing op becomes a `Sized`.

    Raises:
        ValueError: No transform of the chain resizes to a fixed size.
    """
    for at in reversed(range(len(ops))):
        spec = ops[at].spec
        changed = (spec.part if isinstance(spec, VariableSize) else spec).resized(size)
        if changed is not None:
            return *ops[:at], replace(ops[at], spec=VariableSize(part=changed)), *ops[at + 1 :]
    raise ValueError("no RandCropImage or ResizeImage(size) gives the images their size")


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
        return self.sizes.rows[draw_size_index(self.sizes, self.seed, step)]

    def state_dict(self, cursor: Cursor) -> dict[str, Any]:
        """Returns ``cursor`` together with what gives it its meaning: the sizes too, and the ranks."""
        state = super().state_dict(cursor)
        pairs = zip(self.sizes.sizes, self.sizes.rows, strict=True)
        told = ", ".join(f"{rows} of {side} pixels" for side, rows in pairs)
        return {**state, "sampler": f"{state['sampler']}, on each of {self.world} ranks {told}"}

    def for_any_world(self, state: dict[str, Any]) -> str:  # noqa: ARG002
        """Returns nothing: what each rank takes in a step is given, so an epoch goes on with as many."""
        return ""
