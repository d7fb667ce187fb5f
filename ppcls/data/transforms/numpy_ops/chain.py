"""Runs an image through a chain of transforms.

`apply` runs one transform. The other files in this folder implement it for each transform.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs.basic import DecodeImage
from ppcls.data.transforms.specs.decisions import Decisions, check_sides, checked_sides_after, decide
from ppcls.errors import DecodeError as DecodeError

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.specs.chain import Op

Array = NDArray[Any]
_NO_DRAWS = np.zeros(0, np.float32)


@singledispatch
def apply(spec: Transform, image: Any, decisions: Decisions) -> Array:
    """Applies one transform to an image.

    Args:
        spec: The transform.
        image: Image, [H, W, C] uint8, uint16, float16 or float32; or the bytes of a file if the transform is
            a decoder.
        decisions: Row of this image in the arrays that `ppcls.data.transforms.specs.decisions.decide`
            returns.

    Raises:
        NotImplementedError: There is no implementation for NumPy.
    """
    raise NotImplementedError(f"the NumPy backend does not implement {spec.kind}")


def crop(image: Array, top: int, left: int, size: tuple[int, int]) -> Array:
    """Returns a window of an image, without copying.

    Args:
        image: Image, [H, W, C].
        top: First row of the window.
        left: First column of the window.
        size: Width and height of the window in pixels.

    Raises:
        ValueError: The window is larger than the image.
    """
    width, height = size
    if image.shape[0] < height or image.shape[1] < width:
        raise ValueError(
            f"expected an image of at least {width}x{height} pixels for this crop, got "
            f"{image.shape[1]}x{image.shape[0]}"
        )
    return image[top : top + height, left : left + width]


def decide_and_apply(spec: Transform, image: Any, draws: NDArray[np.float32]) -> Array:
    """Decides what the transform does to an image, and applies the transform.

    Args:
        spec: The transform.
        image: See `apply`.
        draws: [spec.draws] float32, uniform random numbers in [0, 1).

    Raises:
        DecodeError: The transform would enlarge the image too much, or there is not enough memory.
    """
    if not isinstance(image, np.ndarray):  # the bytes of a file, whose header the decoder checks
        pixels = apply(spec, image, ())
        check_sides(spec, np.array([pixels.shape[:2]]))
        return pixels
    sides = np.array([image.shape[:2]])
    decisions = decide(spec, draws[None], sides)
    checked_sides_after(spec, sides, decisions)
    try:
        return apply(spec, image, tuple(values[0] for values in decisions))
    except MemoryError:  # one image must not end a run or a server
        raise DecodeError(f"there is not enough memory for {spec.kind} of this image") from None
    except cv2.error as error:
        if error.code != cv2.Error.StsNoMem:
            raise
        raise DecodeError(f"there is not enough memory for {spec.kind} of this image") from None


def run_steps(ops: Sequence[Op], encoded: bytes | memoryview, draws: NDArray[np.float32]) -> Iterator[Array]:
    """Runs an image through a chain, and yields the image after each op. See `run` for the arguments."""
    image: Any = encoded
    for op in ops:
        image = decide_and_apply(op.spec, image, draws[op.slot : op.slot + op.spec.draws])
        yield image


def run(ops: Sequence[Op], image: bytes | memoryview | Array, draws: NDArray[np.float32]) -> Array:
    """Runs an image through a chain.

    Args:
        ops: The chain.
        image: Encoded image, or the result of the decoder if ``ops`` does not contain it.
        draws: [count_draws(ops)] float32, uniform random numbers of the sample in [0, 1).

    Returns:
        The transformed image as a contiguous array, [H, W, C] or [C, H, W].

    Raises:
        DecodeError: The bytes are not an image, or a transform would enlarge it too much.
        ValueError: A crop is larger than the image.
    """
    result: Any = image
    for op in ops:
        result = decide_and_apply(op.spec, result, draws[op.slot : op.slot + op.spec.draws])
    return np.ascontiguousarray(result)


def run_on_pixels(ops: Sequence[Op], pixels: Array) -> Array:
    """Runs decoded pixels through a chain without random transforms.

    Args:
        ops: The chain. Its first transform, the decoder, is skipped.
        pixels: RGB image, [H, W, 3] uint8.

    Returns:
        The transformed image as a contiguous array, [H, W, C] or [C, H, W].

    Raises:
        DecodeError: The image does not have the size that the decoder expects.
        ValueError: The pixels have another shape or dtype, or the chain does not decode to 8-bit RGB or BGR.
    """
    decoder = ops[0].spec
    if not isinstance(decoder, DecodeImage) or (decoder.channels, decoder.dtype) != (3, "uint8"):
        raise ValueError(
            "expected a model whose images are decoded to 8-bit RGB or BGR; pass encoded images to this model"
        )
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise ValueError(
            f"expected pixels of shape [height, width, 3] and dtype uint8, got {list(pixels.shape)} "
            f"{pixels.dtype}"
        )
    check_sides(decoder, np.array([pixels.shape[:2]]))
    image = np.ascontiguousarray(pixels if decoder.to_rgb else pixels[:, :, ::-1])
    for op in ops[1:]:
        image = decide_and_apply(op.spec, image, _NO_DRAWS)
    return np.ascontiguousarray(image)
