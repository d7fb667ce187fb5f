"""Defines transforms that move pixels: borders, crops without resizing, and rotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from ppcls.config.base.fields import MAX_SIDE, Fraction, Number
from ppcls.config.base.problems import expected
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.specs.decisions import (
    Decisions,
    Draws,
    Sides,
    decide,
    drawn_labels,
    fixed_sides,
    sides_after,
)
from ppcls.data.transforms.specs.fields import (
    AroundZero,
    Fill,
    Size,
    bernoulli,
    check_fill,
    cropped_state,
    need_hwc,
    resized_state,
    uniform_between,
)


def _border(value: Any) -> Any:
    """Parses ``4``, ``[horizontal, vertical]`` or ``[left, top, right, bottom]``, and returns four widths."""
    widths = value if isinstance(value, (list, tuple)) else (value,)
    if len(widths) not in (1, 2, 4) or any(
        type(width) is not int or not 0 <= width <= MAX_SIDE for width in widths
    ):
        raise expected(
            f"an integer >= 0 and <= {MAX_SIDE}, or [horizontal, vertical], or [left, top, right, bottom]",
            value,
        )
    return tuple(widths) * (4 // len(widths))


class Pad(Transform):
    """Adds a border to the image."""

    ignored: ClassVar[Mapping[str, str]] = {"backend": "all backends compute the same"}
    padding: Annotated[tuple[int, int, int, int], BeforeValidator(_border)]
    """Width of the border in pixels: one number for all sides, [horizontal, vertical], or [left, top, right,
    bottom]."""
    fill: Fill = (0.0,)
    """Value of the border for `padding_mode: constant`: one number, or one per channel."""
    padding_mode: Literal["constant", "edge", "reflect"] = "constant"
    """Pixels of the border: `constant`: the value of `fill`; `edge`: copies of the outermost pixels;
    `reflect`: mirror image without the outermost pixels."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of images with the border."""
        need_hwc(state)
        if self.padding_mode == "constant":
            check_fill("fill", self.fill, state)
        left, top, right, bottom = self.padding
        if state.size is not None:
            return resized_state(state, (state.size[1] + left + right, state.size[0] + top + bottom))
        if state.shorter is not None and left + right == top + bottom:
            return replace(state, shorter=state.shorter + left + right)
        return replace(state, shorter=None)


@decide.register
def decide_padded_sides(spec: Pad, draws: Draws, sides: Sides) -> Decisions:
    """Returns the heights and widths of images with the border, [N, 2] int32."""
    left, top, right, bottom = spec.padding
    return ((sides + np.array([top + bottom, left + right])).astype(np.int32, order="C"),)


@sides_after.register
def padded_sides(spec: Pad, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of images with the border, [N, 2] int64."""
    return decisions[0].astype(np.int64)


class RandomCropImage(Transform):
    """Crops a window at a random position without resizing."""

    draws: ClassVar[int] = 2

    size: Size
    """Side of a square window, or [width, height], in pixels."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of cropped images."""
        return cropped_state(state, self.size)


@decide.register
def decide_start(spec: RandomCropImage, draws: Draws, sides: Sides) -> Decisions:
    """Returns the start (top, left) of the window, [N, 2] int32."""
    margin = np.maximum(sides - np.array(spec.size[::-1]), 0)
    return (np.floor((margin + 1) * draws.astype(np.float64)).astype(np.int32),)


@sides_after.register
def window_sides(spec: RandomCropImage, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of cropped images, [N, 2] int64."""
    return fixed_sides(sides, spec.size)


class RandCropImageV2(RandomCropImage):
    """Alias of `RandomCropImage`, for compatibility with PaddleClas."""


class RandomRotation(Transform):
    """Rotates some of the images around their centre. The size does not change."""

    draws: ClassVar[int] = 2

    prob: Fraction = 0.5
    """Share of the images that are rotated."""
    degrees: Annotated[tuple[Number, Number], AroundZero]
    """Angle in degrees, counter-clockwise, as [min, max]; one number d means [-d, d]."""
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    """Method of interpolation between pixels."""
    fill: Number = 0.0
    """Pixel value of the uncovered area."""

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_hwc(state)
        check_fill("fill", (self.fill,), state)
        return state


@decide.register
def decide_angle(spec: RandomRotation, draws: Draws, sides: Sides) -> Decisions:
    """Returns the angle in degrees, [N] float32; 0 if the image is not rotated."""
    angle = uniform_between(spec.degrees, draws[:, 1])
    return (np.where(bernoulli(spec.prob, draws[:, 0]), angle, np.float32(0)),)


class RandomRot90(Transform):
    """Rotates square images by 0, 90, 180 or 270 degrees, chosen at random.

    The label ``random_rot90_orientation`` of `CustomLabelDataset` is the number of quarter turns.
    """

    draws: ClassVar[int] = 1
    label_key: ClassVar[str] = "random_rot90_orientation"
    label_count: ClassVar[int] = 4

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_hwc(state)
        if state.size is not None and state.size[0] != state.size[1]:
            height, width = state.size
            raise ValueError(
                f"expected square images, got {width}x{height}; crop or resize them to a square first"
            )
        return state


@decide.register
def decide_quarter_turn(spec: RandomRot90, draws: Draws, sides: Sides) -> Decisions:
    """Returns the angle in degrees, counter-clockwise, [N] float32."""
    return (np.floor(4 * draws[:, 0]) * np.float32(90),)


@drawn_labels.register
def count_quarter_turns(spec: RandomRot90, decisions: Decisions) -> NDArray[np.int64]:
    """Returns the number of quarter turns of each image, 0 to 3, [N] int64."""
    return (decisions[0] / 90).astype(np.int64)


@sides_after.register
def turned_sides(spec: RandomRot90, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths, [N, 2] int64, swapped if the angle is 90 or 270 degrees."""
    return np.where(decisions[0][:, None] % 180 == 90, sides[:, ::-1], sides)
