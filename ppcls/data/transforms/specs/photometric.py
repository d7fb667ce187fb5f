"""Defines transforms that change pixel values: colours and blur."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, NonNegative, Positive
from ppcls.data.transforms.base import ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide
from ppcls.data.transforms.specs.fields import (
    AroundOne,
    AroundZero,
    Itself,
    bernoulli,
    need_hwc,
    need_not_float16,
    need_rgb,
    uniform_between,
)
from ppcls.data.transforms.specs.rng import normals

MIDDLE_GREY = 128.0
NO_BLUR = 0.01  # sigma for which the kernel is 1 in the middle and 0 elsewhere

# Rows: luma, and the two chroma axes of NTSC. Grey pixels have no chroma, so a change of hue leaves them
# grey.
_RGB_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_LUMA = np.tile(_RGB_TO_YIQ[0], (3, 1))
# Columns: the principal axes of ImageNet's colours, in order of decreasing extent. _EXTENT: the standard
# deviation along each axis, in grey levels. Krizhevsky et al. published no values; these are the values of
# fb.resnet.torch (datasets/imagenet.lua), which most programs use.
_PRINCIPAL = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
_EXTENT = 255 * np.array([0.2175, 0.0188, 0.0045])

Factors = Annotated[tuple[NonNegative, NonNegative], AroundOne]
Turn = Annotated[float, Bound(ge=-0.5, le=0.5)]


class ColorMap(Transform, abstract=True):
    """Base class of transforms that apply one affine map to the colours of all pixels of an image."""

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_rgb(state)
        if not state.rgb:
            raise ValueError("expected an RGB image, got BGR; set to_rgb: True in DecodeImage")
        return state


class ColorJitter(ColorMap):
    """Changes saturation, hue, contrast and brightness at random, in this order.

    All changes are combined into one affine map of a pixel's colour. Hue rotates the chroma plane of YIQ.
    Contrast scales differences from grey level 128. This differs from torchvision, which changes the order at
    random, clips after each change, rotates hue in HSV, and scales differences from the mean of the image.
    """

    draws: ClassVar[int] = 5

    prob: Fraction = 1.0
    """Share of the images that are changed."""
    brightness: Factors = (1.0, 1.0)
    """Factor of the brightness, as [min, max]; one number b means [max(0, 1 - b), 1 + b]."""
    contrast: Factors = (1.0, 1.0)
    """Factor of the contrast, as [min, max]; one number c means [max(0, 1 - c), 1 + c]."""
    saturation: Factors = (1.0, 1.0)
    """Factor of the saturation, as [min, max]; one number s means [max(0, 1 - s), 1 + s]; 0 results in grey
    images."""
    hue: Annotated[tuple[Turn, Turn], AroundZero] = (0.0, 0.0)
    """Rotation of the hue as a share of the full circle, as [min, max]; one number h means [-h, h]."""


@decide.register
def decide_color_jitter(spec: ColorJitter, draws: Draws, sides: Sides) -> Decisions:
    """Returns maps from RGB to RGB: matrices, [N, 3, 3], and offsets in grey levels, [N, 3], both float32."""
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
    """Returns maps from RGB to the chroma in RGB, with the hue rotated by ``angle`` radians, [N, 3, 3]."""
    turn = np.zeros([len(angle), 3, 3])
    turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
    turn[:, 1, 2], turn[:, 2, 1] = np.sin(angle), -np.sin(angle)
    return np.asarray(np.linalg.inv(_RGB_TO_YIQ) @ turn @ _RGB_TO_YIQ)


class RandomGrayscale(ColorMap):
    """Converts some of the images to grey: all three channels become 0.299 R + 0.587 G + 0.114 B."""

    draws: ClassVar[int] = 1

    prob: Fraction = 0.1
    """Share of the images that are converted to grey."""


@decide.register
def decide_grayscale(spec: RandomGrayscale, draws: Draws, sides: Sides) -> Decisions:
    """Returns maps from RGB to RGB: matrices, [N, 3, 3], and offsets, [N, 3], both float32."""
    grey = bernoulli(spec.prob, draws[:, 0])[:, None, None]
    return np.where(grey, _LUMA, np.eye(3)).astype(np.float32), np.zeros([len(draws), 3], np.float32)


class PCALighting(ColorMap):
    """Adds one random colour to all pixels, like a change of light (Krizhevsky et al. 2012, section 4.1).

    The colour is normally distributed along each of the three principal axes of ImageNet's colours.
    """

    draws: ClassVar[int] = 4

    alphastd: NonNegative = 0.1
    """Standard deviation of the colour, relative to the standard deviation of ImageNet's colours along each
    axis."""


@decide.register
def decide_lighting(spec: PCALighting, draws: Draws, sides: Sides) -> Decisions:
    """Returns identity matrices, [N, 3, 3], and offsets in grey levels, [N, 3], both float32."""
    shares = spec.alphastd * normals(draws)[:, 1:].astype(np.float64)
    offset = (shares * _EXTENT) @ _PRINCIPAL.T
    return np.tile(np.eye(3, dtype=np.float32), (len(draws), 1, 1)), offset.astype(np.float32)


class GaussianBlur(Transform):
    """Blurs some of the images with a Gaussian kernel (Chen et al. 2020, appendix A).

    At the edges, pixels are mirrored.
    """

    draws: ClassVar[int] = 2

    prob: Fraction = 0.5
    """Share of the images that are blurred."""
    kernel_size: Count = 23
    """Side of the kernel in pixels; must be odd."""
    sigma: Annotated[tuple[Positive, Positive], Itself] = (0.1, 2.0)
    """Standard deviation of the kernel in pixels, as [min, max] or one number."""

    @model_validator(mode="after")
    def _check_odd(self) -> GaussianBlur:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"expected an odd kernel_size, got {self.kernel_size}")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_hwc(state)
        need_not_float16(state)
        return state


@decide.register
def decide_sigma(spec: GaussianBlur, draws: Draws, sides: Sides) -> Decisions:
    """Returns sigma in pixels, [N] float32; `NO_BLUR` if the image is not blurred."""
    sigma = np.maximum(uniform_between(spec.sigma, draws[:, 1]), np.float32(NO_BLUR))
    return (np.where(bernoulli(spec.prob, draws[:, 0]), sigma, np.float32(NO_BLUR)),)
