"""Blur by a random kernel. Whether an image is blurred can be its label."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ppcls.config.base.fields import Bound, Fraction
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide, drawn_labels
from ppcls.data.transforms.specs.fields import bernoulli, need_hwc

_SMALLEST = 5  # side of a kernel in pixels
KernelBound = Annotated[int, Bound(ge=_SMALLEST + 1, le=64)]


class BlurImage(Transform):
    """Blurs a share of the images, one half with a Gaussian kernel, the other half along a line.

    The label `blur_image` of `CustomLabelDataset` is 1 for these images and 0 for the others. All odd sides
    of kernels from 5 pixels are equally likely.
    """

    draws: ClassVar[int] = 4
    label_key: ClassVar[str] = "blur_image"
    label_count: ClassVar[int] = 2

    ratio: Fraction = Field(0.5, description="share of the images that are blurred")
    motion_max_ksize: KernelBound = 12
    """All lines are shorter than this, in pixels."""
    motion_max_angle: Annotated[int, Bound(ge=0, le=180)] = 45
    """Largest angle between the line and the image's diagonal, in degrees."""
    gaussian_max_ksize: KernelBound = 12
    """All sides of Gaussian kernels are smaller than this, in pixels."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_hwc(state)
        if state.dtype == "float16":
            raise ValueError("does not work on float16 images; put it before NormalizeImage")
        return state


@decide.register
def decide_kernel(spec: BlurImage, draws: Draws, sides: Sides) -> Decisions:
    """Whether each image is blurred, [N] bool, and its kernel, [N, K, K] float32 with the sum 1."""
    side = max(_odd_sides(spec.motion_max_ksize)[-1], _odd_sides(spec.gaussian_max_ksize)[-1])
    kernels = np.zeros([len(draws), side, side], np.float32)
    blurred = bernoulli(spec.ratio, draws[:, 0])
    for kernel, row, used in zip(kernels, draws, blurred, strict=True):
        part = _kernel(spec, row[1:]) if used else np.ones([1, 1])
        top, left = ((side - length) // 2 for length in part.shape)
        kernel[top : top + part.shape[0], left : left + part.shape[1]] = part
    return blurred, kernels


@drawn_labels.register
def label_blurred(spec: BlurImage, decisions: Decisions) -> NDArray[np.int64]:
    """Returns 1 for blurred images and 0 for the others."""
    return decisions[0].astype(np.int64)


def _kernel(spec: BlurImage, draws: NDArray[np.float32]) -> NDArray[np.float64]:
    choice, first, second = draws.astype(np.float64).tolist()
    if choice < 0.5:
        rows, columns = (_gaussian(_choose(spec.gaussian_max_ksize, draw)) for draw in (first, second))
        return np.outer(rows, columns)
    angle = (2 * second - 1) * spec.motion_max_angle
    return _line(_choose(spec.motion_max_ksize, first), angle)


def _odd_sides(limit: int) -> NDArray[np.int64]:
    return np.arange(_SMALLEST, limit, 2)


def _choose(limit: int, draw: float) -> int:
    sides = _odd_sides(limit)
    return int(sides[int(draw * len(sides))])


def _gaussian(side: int) -> NDArray[np.float64]:
    """Returns a kernel of one dimension with OpenCV's standard deviation for this side."""
    deviation = 0.3 * ((side - 1) / 2 - 1) + 0.8
    weights = np.exp(-((np.arange(side) - side // 2) ** 2) / (2 * deviation**2))
    return np.asarray(weights / weights.sum())


def _line(side: int, angle: float) -> NDArray[np.float64]:
    """Returns the square's diagonal, rotated counter-clockwise by ``angle`` degrees, as a kernel."""
    turn = np.deg2rad(angle)
    pixels = np.arange(side) - side // 2
    rows, columns = np.meshgrid(pixels, pixels, indexing="ij")
    x = columns * np.cos(turn) - rows * np.sin(turn)
    y = columns * np.sin(turn) + rows * np.cos(turn)
    near_x, near_y = (np.maximum(1 - abs(values[..., None] - pixels), 0) for values in (x, y))
    weights = (near_x * near_y).sum(-1)  # bilinear interpolation
    return np.asarray(weights / weights.sum())
