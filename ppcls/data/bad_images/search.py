"""Finds bad images: by decoding each one, or by bisecting a batch on which DALI failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ppcls.config.sections.transform import Transform
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.numpy_ops.chain import DecodeError, apply

_IMAGE_ERROR = re.compile(r"fn\.(decoders\.|peek_image_shape|io\.file\.read)")
_MACHINE_ERROR = re.compile(r"out of memory|bad_alloc|cuda|driver", re.IGNORECASE)
_REASON = re.compile(r"encountered:\s*(.*?)\s*(?:C\+\+ context|Current pipeline object|$)", re.DOTALL)


def find_undecodable(index: Index, decoder: Transform, positions: Iterable[int]) -> dict[int, str]:
    """Reads and decodes samples with the NumPy backend.

    Args:
        decoder: First transform of the chain.

    Returns:
        The reason for each sample that can't be read or decoded, by position.
    """
    bad = {}
    for position in dict.fromkeys(positions):
        try:
            apply(decoder, index.read(position), ())
        except DecodeError as error:
            bad[position] = str(error)
    return bad


def bisect_bad_images(positions: list[int], try_batch: Callable[[list[int]], str | None]) -> dict[int, str]:
    """Halves a failing batch until single samples fail. DALI may reject images that NumPy's decoders accept.

    Args:
        try_batch: Returns DALI's error for a batch of these samples, or None if it succeeds.

    Returns:
        The reason for each sample on which DALI fails, by position.
    """
    error = try_batch(positions) if positions else None
    if error is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: f"DALI can't decode it: {error_reason(error)}"}
    half = len(positions) // 2
    return bisect_bad_images(positions[:half], try_batch) | bisect_bad_images(positions[half:], try_batch)


def is_image_error(error: str) -> bool:
    """Returns whether DALI's error comes from reading or decoding, and not from lack of memory."""
    return bool(_IMAGE_ERROR.search(error)) and not _MACHINE_ERROR.search(error)


def error_reason(error: str) -> str:
    """Returns the cause in DALI's error as one line, without the traceback."""
    match = _REASON.search(error)
    return " ".join((match[1] if match else error).split()).rstrip(" :")
