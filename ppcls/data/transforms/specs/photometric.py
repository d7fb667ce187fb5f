"""Transforms that change pixel values: colours, blur."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, NonNegative, Positive
from ppcls.config.sections.transform import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import (
    AroundOne,
    AroundZero,
    Itself,
    bernoulli,
    need_hwc,
    need_rgb,
    uniform_between,
)
from ppcls.data.transforms.specs.rng import normals

MIDDLE_GREY = 128.0
NO_BLUR = 0.01  # a sigma whose kernel is 1 in the middle and 0 elsewhere

# Rows: luma and the two chroma axes of NTSC. Grey has no chroma, so it stays grey at any hue.
_RGB_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_LUMA = np.tile(_RGB_TO_YIQ[0], (3, 1))
# Columns: principal axes of ImageNet's colours, the largest first; and the extent along each, in grey levels.
_PRINCIPAL = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
_EXTENT = 255 * np.array([0.2175, 0.0188, 0.0045])

Factors = Annotated[tuple[NonNegative, NonNegative], AroundOne]
Turn = Annotated[float, Bound(ge=-0.5, le=0.5)]


class ColorMap(Transform):
    """Base of transforms that apply one affine map to the colours of all pixels of an image."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_rgb(state)
        if not state.rgb:
            raise ValueError("works on RGB images, but these are BGR; set DecodeImage.to_rgb")
        return state


class ColorJitter(ColorMap):
    """Changes saturation and hue, then contrast, then brightness, each by a random factor.

    It is one affine map of a pixel's colour: hue rotates the chroma plane of YIQ, contrast is around grey
    128. It differs from torchvision's, which shuffles the four, clips in between, rotates hue in HSV, and
    takes contrast around each image's own mean.
    """

    draws: ClassVar[int] = 5

    prob: Fraction = Field(1.0, description="share of the images that are changed")
    brightness: Factors = Field(
        (1.0, 1.0), description="factor as [min, max]; one number b means [max(0, 1 - b), 1 + b]"
    )
    contrast: Factors = Field((1.0, 1.0), description="factor, written like brightness")
    saturation: Factors = Field(
        (1.0, 1.0), description="factor, written like brightness; 0 gives grey images"
    )
    hue: Annotated[tuple[Turn, Turn], AroundZero] = Field(
        (0.0, 0.0), description="share of a full turn of hues as [min, max]; one number h means [-h, h]"
    )


@decide.register
def decide_color_jitter(spec: ColorJitter, draws: Draws, sides: Sides) -> Decisions:
    """Matrix [N, 3, 3] and offset [N, 3] of the map from RGB to RGB in grey levels, float32."""
    brightness, contrast, saturation, hue = (
        uniform_between(limits, draws[:, at]).astype(np.float64)
        for at, limits in enumerate((spec.brightness, spec.contrast, spec.saturation, spec.hue), start=1)
    )
    colour = _LUMA + saturation[:, None, None] * _rotated_chroma(2 * np.pi * hue)
    matrix = (brightness * contrast)[:, None, None] * colour
    offset = np.tile((brightness * (1 - contrast) * MIDDLE_GREY)[:, None], 3)
    changed = bernoulli(spec.prob, draws[:, 0])
    return (
        np.where(changed[:, None, None], matrix, np.eye(3)).astype(np.float32),
        np.where(changed[:, None], offset, 0).astype(np.float32),
    )


def _rotated_chroma(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [N, 3, 3] maps from RGB to its chroma in RGB, the hue rotated by [N] radians."""
    turn = np.zeros([len(angle), 3, 3])
    turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
    turn[:, 1, 2], turn[:, 2, 1] = np.sin(angle), -np.sin(angle)
    return np.asarray(np.linalg.inv(_RGB_TO_YIQ) @ turn @ _RGB_TO_YIQ)


class RandomGrayscale(ColorMap):
    """Converts images to grey: all three channels become 0.299 R + 0.587 G + 0.114 B."""

    draws: ClassVar[int] = 1

    prob: Fraction = Field(0.1, description="share of the images that become grey")


@decide.register
def decide_grayscale(spec: RandomGrayscale, draws: Draws, sides: Sides) -> Decisions:
    """Matrix [N, 3, 3] and offset [N, 3] of the map from RGB to RGB, float32."""
    grey = bernoulli(spec.prob, draws[:, 0])[:, None, None]
    return np.where(grey, _LUMA, np.eye(3)).astype(np.float32), np.zeros([len(draws), 3], np.float32)


class PCALighting(ColorMap):
    """Shifts all pixels by one random colour, like a change of light (Krizhevsky et al. 2012, section 4.1).

    The shift is normally distributed along each of the three principal axes of ImageNet's colours.
    """

    draws: ClassVar[int] = 4

    alphastd: NonNegative = Field(
        0.1, description="standard deviation, relative to that of ImageNet's colours along each axis"
    )


@decide.register
def decide_lighting(spec: PCALighting, draws: Draws, sides: Sides) -> Decisions:
    """Identity matrix [N, 3, 3] and offset [N, 3] in grey levels, float32."""
    shares = spec.alphastd * normals(draws)[:, 1:].astype(np.float64)
    offset = (shares * _EXTENT) @ _PRINCIPAL.T
    return np.tile(np.eye(3, dtype=np.float32), (len(draws), 1, 1)), offset.astype(np.float32)


class GaussianBlur(Transform):
    """Blurs with a Gaussian kernel; pixels are mirrored at the edge (Chen et al. 2020, appendix A)."""

    draws: ClassVar[int] = 2

    prob: Fraction = Field(0.5, description="share of the images that are blurred")
    kernel_size: Count = Field(23, description="side of the kernel in pixels; must be odd")
    sigma: Annotated[tuple[Positive, Positive], Itself] = Field(
        (0.1, 2.0), description="standard deviation in pixels: [min, max], or one number"
    )

    @model_validator(mode="after")
    def _check_odd(self) -> GaussianBlur:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"expected an odd kernel_size, got {self.kernel_size}")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_hwc(state)
        if state.dtype == "float16":
            raise ValueError("does not work on float16 images; put it before NormalizeImage")
        return state


@decide.register
def decide_sigma(spec: GaussianBlur, draws: Draws, sides: Sides) -> Decisions:
    """Sigma in pixels, `NO_BLUR` where the image is not blurred, [N] float32."""
    sigma = np.maximum(uniform_between(spec.sigma, draws[:, 1]), np.float32(NO_BLUR))
    return (np.where(bernoulli(spec.prob, draws[:, 0]), sigma, np.float32(NO_BLUR)),)
