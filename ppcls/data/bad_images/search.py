"""Finds bad images by decoding each image, or by bisecting a batch on which DALI failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ppcls.data.index.protocol import Index
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops.chain import DecodeError, apply

_IMAGE_ERROR = re.compile(r"fn\.(decoders\.|peek_image_shape|io\.file\.read)")
_MACHINE_ERROR = re.compile(r"out of memory|bad_alloc|cuda|driver", re.IGNORECASE)
_HOST_MEMORY = "std::bad_alloc"
_DECODER_MESSAGE = re.compile(r"nvImageCodec|nvimgcodec|_parser|_decoder|Failed to decode")
_REASON = re.compile(r"encountered:\s*(.*?)\s*(?:C\+\+ context|Current pipeline object|$)", re.DOTALL)


def find_undecodable(index: Index, decoder: Transform, positions: Iterable[int]) -> dict[int, str]:
    """Finds samples that the NumPy backend can't read or decode.

    Args:
        decoder: First transform of the chain, which decodes an image.
        positions: Positions of the samples to try.

    Returns:
        A map from the position of each bad sample to the reason.
    """
    bad = {}
    for position in dict.fromkeys(positions):
        try:
            apply(decoder, index.read(position), ())
        except DecodeError as error:
            bad[position] = str(error)
    return bad


def bisect_bad_images(positions: list[int], try_batch: Callable[[list[int]], str | None]) -> dict[int, str]:
    """Finds the samples on which DALI fails by halving a failing batch repeatedly.

    DALI may reject images that the NumPy backend accepts.

    Args:
        positions: Positions of the samples in the batch.
        try_batch: Decodes a batch of these samples with DALI. Returns DALI's error, or None on success.

    Returns:
        A map from the position of each bad sample to the reason.
    """
    error = try_batch(positions) if positions else None
    if error is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: describe_dali_error(error)}
    half = len(positions) // 2
    return bisect_bad_images(positions[:half], try_batch) | bisect_bad_images(positions[half:], try_batch)


def is_image_error(error: str) -> bool:
    """Returns whether an image caused DALI's error, rather than, for example, a lack of memory."""
    return bool(_IMAGE_ERROR.search(error)) and not _MACHINE_ERROR.search(error)


def is_memory_error(error: Exception) -> bool:
    """Returns whether a decoder of DALI had not enough memory of the host."""
    return isinstance(error, MemoryError) or _HOST_MEMORY in str(error)


def describe_dali_error(error: str) -> str:
    """Returns why DALI failed on an image that the NumPy backend decodes.

    Messages of DALI's decoders, such as ``nvImageCodec failure: '#3'``, would not help.
    """
    reason = error_reason(error)
    if _HOST_MEMORY in reason:
        return "DALI has not enough memory to decode the image"
    if _DECODER_MESSAGE.search(reason):
        return "DALI can't decode this kind of image, although OpenCV can; convert the image to JPEG or PNG"
    return f"DALI can't read the image: {reason}"


def error_reason(error: str) -> str:
    """Returns the cause in DALI's error as one line, without the traceback."""
    match = _REASON.search(error)
    return " ".join((match[1] if match else error).split()).rstrip(" :")
