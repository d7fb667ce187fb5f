"""Changes the size of a chain's images from step to step, within one DALI pipeline or set of workers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, singledispatch
from typing import Any

import numpy as np

from ppcls.config.input_size import EqualPixels, InputSize, MultiScale, Progressive
from ppcls.config.transform import ImageState, Transform
from ppcls.data.decisions import Decided, Draws, Sides, decide, sides_after
from ppcls.data.draws import Purpose, step_fractions
from ppcls.data.fuse import DecodeRandCrop
from ppcls.data.order import Cursor
from ppcls.data.transforms import Op, RandCropImage, ResizeImage


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
    return spec.sizes[drawn_size(spec, seed, cursor.step)]


def drawn_size(spec: EqualPixels, seed: int, step: int) -> int:
    """Returns which of the sizes a step of every epoch has."""
    (drawn,) = step_fractions(seed, 0, step, 1, Purpose.SIZE)
    return int(drawn * len(spec.sizes))


class Sized(Transform):
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
def _(spec: Sized, draws: Draws, sides: Sides) -> Decided:
    """The transform's own decisions, and the size (width, height) to make, [N, 2] float32."""
    size = np.array(spec.crop.size, np.float32)
    return *decide(spec.part, draws, sides), np.tile(size, (len(sides), 1))


@sides_after.register
def _(spec: Sized, sides: Sides, decided: Decided) -> Sides:
    return sides_after(spec.part, sides, decided[:-1])


@lru_cache(maxsize=64)
def at_size(ops: tuple[Op, ...], size: int) -> tuple[Op, ...]:
    """Returns a chain, fused or not, that makes square images of ``size``; its sizing op becomes a `Sized`.

    Raises:
        ValueError: No transform of the chain resizes to a fixed size.
    """
    for at in reversed(range(len(ops))):
        spec = ops[at].spec
        changed = (spec.part if isinstance(spec, Sized) else spec).resized(size)
        if changed is not None:
            return *ops[:at], replace(ops[at], spec=Sized(part=changed)), *ops[at + 1 :]
    raise ValueError("no RandCropImage or ResizeImage(size) gives the images their size")
