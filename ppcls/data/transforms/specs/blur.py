"""Defines a transform that blurs images with random kernels, and a label that identifies blurred images."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppcls.config.base.fields import Bound, Fraction
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide, drawn_labels
from ppcls.data.transforms.specs.fields import bernoulli, need_hwc, need_not_float16

_SMALLEST = 5  # minimum side of a kernel in pixels
KernelBound = Annotated[int, Bound(ge=_SMALLEST + 1, le=64)]


class BlurImage(Transform):
    """Blurs some of the images: half of them with a Gaussian kernel, and half of them along a line.

    The label ``blur_image`` of `CustomLabelDataset` is 1 for blurred images, and 0 for other images. The side
    of a kernel is an odd number of pixels, at least 5. All possible sides are equally likely.
    """

    draws: ClassVar[int] = 4
    label_key: ClassVar[str] = "blur_image"
    label_count: ClassVar[int] = 2

    ratio: Fraction = 0.5
    """Share of the images that are blurred."""
    motion_max_ksize: KernelBound = 12
    """Upper limit of the length of the line in pixels, exclusive."""
    motion_max_angle: Annotated[int, Bound(ge=0, le=180)] = 45
    """Maximum angle between the line and the diagonal of the image, in degrees."""
    gaussian_max_ksize: KernelBound = 12
    """Upper limit of the side of a Gaussian kernel in pixels, exclusive."""

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_hwc(state)
        need_not_float16(state)
        return state


@decide.register
def decide_kernel(spec: BlurImage, draws: Draws, sides: Sides) -> Decisions:
    """Returns whether to blur each image, [N] bool, and the kernels, [N, K, K] float32, whose sums are 1."""
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
    """Returns 1 for blurred images and 0 for other images, [N] int64."""
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
    """Returns a one-dimensional Gaussian kernel, [side], with OpenCV's standard deviation for this side."""
    deviation = 0.3 * ((side - 1) / 2 - 1) + 0.8
    weights = np.exp(-((np.arange(side) - side // 2) ** 2) / (2 * deviation**2))
    return np.asarray(weights / weights.sum())


def _line(side: int, angle: float) -> NDArray[np.float64]:
    """Returns a kernel, [side, side], of the diagonal, rotated counter-clockwise by ``angle`` degrees."""
    turn = np.deg2rad(angle)
    pixels = np.arange(side) - side // 2
    rows, columns = np.meshgrid(pixels, pixels, indexing="ij")
    x = columns * np.cos(turn) - rows * np.sin(turn)
    y = columns * np.sin(turn) + rows * np.cos(turn)
    near_x, near_y = (np.maximum(1 - abs(values[..., None] - pixels), 0) for values in (x, y))
    weights = (near_x * near_y).sum(-1)  # bilinear interpolation
    return np.asarray(weights / weights.sum())
