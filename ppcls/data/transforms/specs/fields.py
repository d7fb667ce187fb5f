"""What several specs share: field types, checks of the image they work on, and distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from ppcls.config.base.fields import MAX_SIDE, Number, expected, read_number
from ppcls.config.sections.transform import ImageState

_LARGEST = {"uint8": 255, "uint16": 65535}


def _width_height(value: Any) -> Any:
    """Reads ``224`` or ``[224, 192]`` (width, height: PaddleClas's order)."""
    sides = value if isinstance(value, (list, tuple)) else (value, value)
    if len(sides) != 2 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        raise expected(f"an integer > 0 and <= {MAX_SIDE}, or [width, height]", value)
    return tuple(sides)


def _limits(expand: Callable[[float], tuple[float, float]]) -> BeforeValidator:
    """Reads ``[min, max]``, or a single number that ``expand`` turns into both."""

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
    """Reads ``0`` or ``[124, 116, 104]``."""
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
    """Raises ValueError unless ``values`` fill a pixel of such an image: one number, or one per channel."""
    if len(values) not in (1, state.channels):
        raise ValueError(f"expected 1 or {state.channels} values in {name}, got {len(values)}")
    largest = _LARGEST.get(state.dtype)
    if largest and not all(value == int(value) and 0 <= value <= largest for value in values):
        raise ValueError(f"expected integers from 0 to {largest} in {name}, got {list(values)}")


def need_pixels(state: ImageState) -> None:
    """Raises ValueError unless the image is decoded."""
    if state.encoded:
        raise ValueError("the image is not decoded yet; put DecodeImage before it")


def need_hwc(state: ImageState) -> None:
    """Raises ValueError unless the image is [H, W, C]."""
    need_pixels(state)
    if state.layout != "HWC":
        raise ValueError("works on HWC images; put it before ToCHWImage")


def need_unnormalized(state: ImageState) -> None:
    """Raises ValueError if NormalizeImage comes before."""
    if state.normalized:
        raise ValueError("works on images that are not normalized yet; put it before NormalizeImage")


def need_8_bit(state: ImageState) -> None:
    """Raises ValueError unless the pixels are 8-bit."""
    if state.normalized:
        raise ValueError("works on 8-bit images; put it before NormalizeImage")
    if state.dtype != "uint8":
        raise ValueError(f"works on 8-bit images, but these are {state.dtype}; decode to dtype: uint8")


def need_rgb(state: ImageState) -> None:
    """Raises ValueError unless the image is [H, W, 3] 8-bit."""
    need_hwc(state)
    need_8_bit(state)
    if state.channels != 3:
        raise ValueError(f"works on RGB images, but these have {state.channels} channels")


def resized_state(state: ImageState, size: tuple[int, int]) -> ImageState:
    """Returns the state of images that all have ``size`` (width, height)."""
    return replace(state, size=(size[1], size[0]), shorter=min(size))


def cropped_state(state: ImageState, size: tuple[int, int]) -> ImageState:
    """Returns the state of a window of ``size`` (width, height).

    Raises:
        ValueError: The window might not fit the images.
    """
    need_hwc(state)
    width, height = size
    if state.size is not None:
        fits = height <= state.size[0] and width <= state.size[1]
        images = f"{state.size[1]}x{state.size[0]}"
    else:
        fits = state.shorter is not None and max(width, height) <= state.shorter
        images = f"images with a shorter side of {state.shorter}" if state.shorter else "images of any size"
    if not fits:
        raise ValueError(f"a {width}x{height} crop doesn't fit {images}; resize before it")
    return resized_state(state, size)


def bernoulli(prob: float, draws: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Returns whether an event of probability ``prob`` happens to each sample, for uniform draws [N]: [N]."""
    return draws < prob


def uniform_between(limits: tuple[float, float], draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales numbers uniform in [0, 1) to [min, max), [N] float32."""
    low, high = limits
    return (low + (high - low) * draws.astype(np.float64)).astype(np.float32)
