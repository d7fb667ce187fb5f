"""The random crop's window, as one formula for numpy and for DALI's graph.

Both compute in float32 with operations that IEEE 754 rounds exactly (+ - * / sqrt floor min max), in
the same order, so both cut the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ppcls.data.transforms import RandCropImage


class Maths(NamedTuple):
    """The functions of one array library; values are float32 throughout."""

    constant: Callable[[float], Any]
    sqrt: Callable[[Any], Any]
    floor: Callable[[Any], Any]
    minimum: Callable[[Any, Any], Any]
    maximum: Callable[[Any, Any], Any]


class Window(NamedTuple):
    """Pixels to cut: whole numbers, in the library's float32."""

    top: Any
    left: Any
    height: Any
    width: Any


def random_window(spec: RandCropImage, height: Any, width: Any, draws: Any, maths: Maths) -> Window:
    """Returns the window of PaddleClas's RandCropImage.

    The aspect ratio is uniform in ``ratio``, the share of the area uniform in ``scale``, both limited
    to what the image can hold; the place is uniform among all that fit.

    Args:
        spec: The transform.
        height: Of the image, float32.
        width: Of the image, float32.
        draws: Four uniform numbers in [0, 1), float32: aspect, area, left, top.
        maths: Functions that work on these values.
    """
    constant, one = maths.constant, maths.constant(1.0)
    low, high = spec.ratio
    aspect = constant(low) + constant(high - low) * draws[0]
    bound = maths.minimum(width / height / aspect, height / width * aspect)
    lowest = maths.minimum(constant(spec.scale[0]), bound)
    highest = maths.minimum(constant(spec.scale[1]), bound)
    side = maths.sqrt(width * height * (lowest + (highest - lowest) * draws[1]))
    root = maths.sqrt(aspect)

    def within(value: Any, limit: Any) -> Any:
        return maths.maximum(one, maths.minimum(maths.floor(value), limit))

    cut_width, cut_height = within(side * root, width), within(side / root, height)

    def place(room: Any, draw: Any) -> Any:
        return maths.minimum(maths.floor((room + one) * draw), room)

    left, top = place(width - cut_width, draws[2]), place(height - cut_height, draws[3])
    return Window(top, left, cut_height, cut_width)
