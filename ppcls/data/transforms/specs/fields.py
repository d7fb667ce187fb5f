"""Provides field types, checks of input images, and random distributions for several specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from ppcls.config.base.fields import MAX_SIDE, Number, read_number
from ppcls.config.base.problems import expected

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.base import ImageState

_LARGEST = {"uint8": 255, "uint16": 65535}


def _width_height(value: Any) -> Any:
    """Parses a size such as ``224`` or ``[224, 192]``. The order is width, height, as in PaddleClas."""
    sides = value if isinstance(value, (list, tuple)) else (value, value)
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        raise expected(f"an integer > 0 and <= {MAX_SIDE}, or [width, height]", value)
    return tuple(sides)


def _limits(expand: Callable[[float], tuple[float, float]]) -> BeforeValidator:
    """Returns a validator that accepts ``[min, max]``, or a number that ``expand`` converts into both."""

    def is_number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    def read(value: Any) -> Any:
        limits = tuple(map(read_number, value if isinstance(value, (list, tuple)) else (value,)))
        if len(limits) not in (1, 2) or not all(map(is_number, limits)):
            raise expected("a number >= 0, or [min, max]", value)
        low, high = limits if len(limits) == 2 else expand(limits[0])
        if low > high:
            raise expected("a number >= 0, or [min, max]", value)
        return low, high

    return BeforeValidator(read)


def _one_per_channel(value: Any) -> Any:
    """Parses a number or a list with one number per channel, such as ``0`` or ``[124, 116, 104]``."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not values:
        raise expected("a number, or one per channel", value)
    return values


Size = Annotated[tuple[int, int], BeforeValidator(_width_height)]
AroundZero = _limits(lambda d: (-d, d))
AroundOne = _limits(lambda d: (max(0.0, 1.0 - d), 1.0 + d))
Itself = _limits(lambda n: (n, n))
Fill = Annotated[tuple[Number, ...], BeforeValidator(_one_per_channel)]


def check_fill(name: str, values: tuple[float, ...], state: ImageState) -> None:
    """Checks that ``values`` can fill a pixel of an image: one number for all channels, or one per channel.

    Args:
        name: Config key of the values, for messages.
        values: Values in the unit of the image's pixels.
        state: State of the image.

    Raises:
        ValueError: The number of values is wrong, or a value is not valid for the image's dtype.
    """
    if len(values) not in (1, state.channels):
        raise ValueError(f"expected 1 or {state.channels} values in {name}, got {len(values)}")
    largest = _LARGEST.get(state.dtype)
    if largest and not all(value == int(value) and 0 <= value <= largest for value in values):
        raise ValueError(f"expected integers from 0 to {largest} in {name}, got {list(values)}")


def need_pixels(state: ImageState) -> None:
    """Raises ValueError if the image is not decoded."""
    if state.encoded:
        raise ValueError("expected a decoded image; put DecodeImage before this transform")


def need_hwc(state: ImageState) -> None:
    """Raises ValueError if the layout of the image is not [H, W, C]."""
    need_pixels(state)
    if state.layout != "HWC":
        raise ValueError("expected an HWC image, got CHW; put this transform before ToCHWImage")


def need_not_float16(state: ImageState) -> None:
    """Raises ValueError if the image is float16."""
    if state.dtype == "float16":
        raise ValueError("float16 images are not supported; put this transform before NormalizeImage")


def need_unnormalized(state: ImageState) -> None:
    """Raises ValueError if the image is normalized."""
    if state.normalized:
        raise ValueError("expected an image that is not normalized; put this transform before NormalizeImage")


def need_8_bit(state: ImageState) -> None:
    """Raises ValueError if the pixels are not 8-bit integers."""
    if state.normalized:
        raise ValueError(
            "expected an 8-bit image, got a normalized one; put this transform before NormalizeImage"
        )
    if state.dtype != "uint8":
        raise ValueError(f"expected an 8-bit image, got {state.dtype}; set dtype: uint8 in the decoder")


def need_rgb(state: ImageState) -> None:
    """Raises ValueError if the image is not [H, W, 3] with 8-bit pixels."""
    need_hwc(state)
    need_8_bit(state)
    if state.channels != 3:
        raise ValueError(f"expected an image with 3 channels, got {state.channels}")


def resized_state(state: ImageState, size: tuple[int, int]) -> ImageState:
    """Returns the state of images that all have ``size`` (width, height)."""
    return replace(state, size=(size[1], size[0]), shorter=min(size))


def cropped_state(state: ImageState, size: tuple[int, int]) -> ImageState:
    """Returns the state of images that are cropped to ``size`` (width, height).

    Raises:
        ValueError: An image might be smaller than the window.
    """
    need_hwc(state)
    width, height = size
    if state.size is not None:
        fits = height <= state.size[0] and width <= state.size[1]
        images = f"{state.size[1]}x{state.size[0]}"
    else:
        fits = state.shorter is not None and max(width, height) <= state.shorter
        images = (
            f"images with a shorter side of {state.shorter}" if state.shorter else "images of unknown size"
        )
    if not fits:
        raise ValueError(
            f"a {width}x{height} crop needs images of at least {width}x{height} pixels, got {images}; "
            "decrease its size, or resize the images first"
        )
    return resized_state(state, size)


def bernoulli(prob: float, draws: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Returns True with probability ``prob`` for each of the uniform random numbers, [N]."""
    return draws < prob


def uniform_between(limits: tuple[float, float], draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales uniform random numbers in [0, 1) to the interval ``limits``, [N] float32."""
    low, high = limits
    return (low + (high - low) * draws.astype(np.float64)).astype(np.float32)
