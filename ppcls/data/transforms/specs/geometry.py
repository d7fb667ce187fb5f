"""Where pixels go: borders, windows of a fixed size, turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from ppcls.config.base.fields import Fraction, Number, expected
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.basic import Size, cut_state, need_hwc
from ppcls.data.transforms.specs.decisions import Decided, Draws, Sides, decide, fixed_sides, sides_after
from ppcls.data.transforms.specs.fields import AroundZero, Fill, check_fill, chosen, spread


def _border(value: Any) -> Any:
    """Reads ``4``, ``[horizontal, vertical]`` or ``[left, top, right, bottom]``."""
    widths = value if isinstance(value, (list, tuple)) else (value,)
    if len(widths) not in (1, 2, 4) or any(
        isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in widths
    ):
        raise expected("an integer >= 0, or [horizontal, vertical], or [left, top, right, bottom]", value)
    return tuple(widths) * (4 // len(widths))


class Pad(Transform):
    """Adds a border; ``edge`` repeats the outermost pixels, ``reflect`` mirrors the image but for them."""

    padding: Annotated[tuple[int, int, int, int], BeforeValidator(_border)] = Field(
        description="pixels on all sides, or [horizontal, vertical], or [left, top, right, bottom]"
    )
    fill: Fill = Field((0.0,), description="value of a constant border: a number, or one a channel")
    padding_mode: Literal["constant", "edge", "reflect"] = "constant"

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the border added to the size."""
        need_hwc(state)
        if self.padding_mode == "constant":
            check_fill("fill", self.fill, state)
        left, top, right, bottom = self.padding
        if state.size is not None:
            height, width = state.size[0] + top + bottom, state.size[1] + left + right
            return replace(state, size=(height, width), shorter=min(height, width))
        if state.shorter is not None and left + right == top + bottom:
            return replace(state, shorter=state.shorter + left + right)
        return replace(state, shorter=None)


@decide.register
def _(spec: Pad, draws: Draws, sides: Sides) -> Decided:
    """Heights and widths with the border, [N, 2] int32."""
    left, top, right, bottom = spec.padding
    return ((sides + np.array([top + bottom, left + right])).astype(np.int32, order="C"),)


@sides_after.register
def _(spec: Pad, sides: Sides, decided: Decided) -> Sides:
    return decided[0].astype(np.int64)


class RandomCropImage(Transform):
    """Cuts a window of ``size`` at a random place, without resizing; all places are equally likely."""

    draws: ClassVar[int] = 2

    size: Size

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the window's size."""
        need_hwc(state)
        return cut_state(state, self.size)


@decide.register
def _(spec: RandomCropImage, draws: Draws, sides: Sides) -> Decided:
    """Start (top, left) of the window, [N, 2] int32."""
    room = np.maximum(sides - np.array(spec.size[::-1]), 0)
    return (np.floor((room + 1) * draws.astype(np.float64)).astype(np.int32),)


@sides_after.register
def _(spec: RandomCropImage, sides: Sides, decided: Decided) -> Sides:
    return fixed_sides(sides, spec.size)


class RandCropImageV2(RandomCropImage):
    """`RandomCropImage` by PaddleClas's other name for it."""


class RandomRotation(Transform):
    """Turns the image around its centre and keeps its size; what was outside of it is ``fill``."""

    draws: ClassVar[int] = 2

    prob: Fraction = Field(0.5, description="share of the images that are turned")
    degrees: Annotated[tuple[Number, Number], AroundZero] = Field(
        description="[min, max] of the angle, counter-clockwise; d means [-d, d]"
    )
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Number = 0.0

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_hwc(state)
        check_fill("fill", (self.fill,), state)
        return state


@decide.register
def _(spec: RandomRotation, draws: Draws, sides: Sides) -> Decided:
    """The angle in degrees, 0 where it is not turned, [N] float32."""
    angle = spread(spec.degrees, draws[:, 1])
    return (np.where(chosen(spec.prob, draws[:, 0]), angle, np.float32(0)),)


class RandomRot90(Transform):
    """Turns square images by 0, 90, 180 or 270 degrees, equally likely."""

    draws: ClassVar[int] = 1

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged: where sides differ between images, they may change places."""
        need_hwc(state)
        if state.size is not None and state.size[0] != state.size[1]:
            height, width = state.size
            raise ValueError(f"a quarter turn needs square images, and these are {width}x{height}")
        return state


@decide.register
def _(spec: RandomRot90, draws: Draws, sides: Sides) -> Decided:
    """The angle in degrees, counter-clockwise, [N] float32."""
    return (np.floor(4 * draws[:, 0]) * np.float32(90),)


@sides_after.register
def _(spec: RandomRot90, sides: Sides, decided: Decided) -> Sides:
    return np.where(decided[0][:, None] % 180 == 90, sides[:, ::-1], sides)
