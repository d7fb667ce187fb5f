"""One image through a chain, transform by transform; each family's file registers how it does them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.transform import Transform
from ppcls.data.images.header import DecodeError as DecodeError
from ppcls.data.transforms.specs import DecodeImage, Op
from ppcls.data.transforms.specs.decisions import Decided, decide

Array = NDArray[Any]


def run(ops: Sequence[Op], encoded: bytes | memoryview, draws: NDArray[np.float32]) -> Array:
    """Takes one image through a chain.

    Args:
        ops: The chain.
        encoded: The file's bytes.
        draws: The sample's uniform numbers, [count_draws(ops)] float32.

    Returns:
        [H, W, C] or [C, H, W], contiguous.

    Raises:
        DecodeError: The bytes are not an image.
        ValueError: A crop is larger than the image.
    """
    *_, image = run_each(ops, encoded, draws)
    return np.ascontiguousarray(image)


def run_each(ops: Sequence[Op], encoded: bytes | memoryview, draws: NDArray[np.float32]) -> Iterator[Array]:
    """Takes one image through a chain as `run` does, and yields it after each op."""
    image: Any = encoded
    for op in ops:
        image = apply_drawn(op.spec, image, draws[op.slot : op.slot + op.spec.draws])
        yield image


def run_on_pixels(ops: Sequence[Op], pixels: Array) -> Array:
    """Takes RGB pixels, in place of a file's bytes, through a chain that draws nothing.

    Args:
        ops: The chain; its first transform would decode.
        pixels: [H, W, 3] uint8.

    Returns:
        As `run`.

    Raises:
        ValueError: The pixels are of another shape or type, or the chain does not begin with 8-bit RGB or
            BGR.
    """
    decoder = ops[0].spec
    if not isinstance(decoder, DecodeImage) or (decoder.channels, decoder.dtype) != (3, "uint8"):
        raise ValueError("the model's images are not 8-bit RGB; give the bytes of files")
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or not pixels.size:
        raise ValueError(f"expected [height, width, 3] of uint8, got {list(pixels.shape)} of {pixels.dtype}")
    image = np.ascontiguousarray(pixels if decoder.to_rgb else pixels[:, :, ::-1])
    for op in ops[1:]:
        image = apply(op.spec, image, ())
    return np.ascontiguousarray(image)


def apply_drawn(spec: Transform, image: Any, draws: NDArray[np.float32]) -> Array:
    """Decides by [spec.draws] uniform numbers what a transform does to an image, and applies it."""
    if not spec.draws:
        return apply(spec, image, ())
    decided = decide(spec, draws[None], np.array([image.shape[:2]]))
    return apply(spec, image, tuple(each[0] for each in decided))


@singledispatch
def apply(spec: Transform, image: Any, decided: Decided) -> Array:
    """Applies one transform to an image.

    Args:
        spec: The transform.
        image: [H, W, C] uint8, uint16 or float32; a file's bytes for a decoder.
        decided: What `ppcls.data.transforms.specs.decisions.decide` says of this image.
    """
    raise NotImplementedError(f"numpy_ops knows no {spec.kind}")
