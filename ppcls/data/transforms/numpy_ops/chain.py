"""Runs one image through a chain of transforms; the other files of the folder implement the transforms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.transform import Transform
from ppcls.data.images.header import DecodeError as DecodeError
from ppcls.data.transforms.specs.basic import DecodeImage
from ppcls.data.transforms.specs.decisions import Decisions, decide

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.specs.chain import Op

Array = NDArray[Any]


@singledispatch
def apply(spec: Transform, image: Any, decisions: Decisions) -> Array:
    """Applies one transform to an image.

    Args:
        image: [H, W, C] uint8, uint16 or float32; a file's bytes for a decoder.
        decisions: What `ppcls.data.transforms.specs.decisions.decide` returns for this image.
    """
    raise NotImplementedError(f"numpy_ops does not implement {spec.kind}")


def crop(image: Array, top: int, left: int, size: tuple[int, int]) -> Array:
    """Crops a window of ``size`` (width, height).

    Raises:
        ValueError: The window is larger than the image.
    """
    width, height = size
    if image.shape[0] < height or image.shape[1] < width:
        raise ValueError(f"a {width}x{height} crop doesn't fit an image of {image.shape[1]}x{image.shape[0]}")
    return image[top : top + height, left : left + width]


def decide_and_apply(spec: Transform, image: Any, draws: NDArray[np.float32]) -> Array:
    """Applies a transform with the decisions that follow from its [spec.draws] uniform numbers."""
    if not spec.draws:
        return apply(spec, image, ())
    decisions = decide(spec, draws[None], np.array([image.shape[:2]]))
    return apply(spec, image, tuple(values[0] for values in decisions))


def run_steps(ops: Sequence[Op], encoded: bytes | memoryview, draws: NDArray[np.float32]) -> Iterator[Array]:
    """Runs one image through a chain as `run` does, and yields it after each op."""
    image: Any = encoded
    for op in ops:
        image = decide_and_apply(op.spec, image, draws[op.slot : op.slot + op.spec.draws])
        yield image


def run(ops: Sequence[Op], encoded: bytes | memoryview, draws: NDArray[np.float32]) -> Array:
    """Runs one image through a chain.

    Args:
        draws: The sample's uniform numbers, [count_draws(ops)] float32.

    Returns:
        [H, W, C] or [C, H, W], contiguous.

    Raises:
        DecodeError: The bytes are not an image.
        ValueError: A crop is larger than the image.
    """
    *_, image = run_steps(ops, encoded, draws)
    return np.ascontiguousarray(image)


def run_on_pixels(ops: Sequence[Op], pixels: Array) -> Array:
    """Runs RGB pixels, instead of a file's bytes, through a chain without random transforms.

    Args:
        ops: The chain; its first transform, the decoder, is skipped.
        pixels: [H, W, 3] uint8.

    Returns:
        [H, W, C] or [C, H, W], contiguous.

    Raises:
        ValueError: The pixels have another shape or dtype, or the chain does not decode to 8-bit RGB or BGR.
    """
    decoder = ops[0].spec
    if not isinstance(decoder, DecodeImage) or (decoder.channels, decoder.dtype) != (3, "uint8"):
        raise ValueError("the model's images are not 8-bit RGB; pass the bytes of files")
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise ValueError(f"expected [height, width, 3] of uint8, got {list(pixels.shape)} of {pixels.dtype}")
    image = np.ascontiguousarray(pixels if decoder.to_rgb else pixels[:, :, ::-1])
    for op in ops[1:]:
        image = apply(op.spec, image, ())
    return np.ascontiguousarray(image)
