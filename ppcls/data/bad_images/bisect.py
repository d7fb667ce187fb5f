"""Finds the image that DALI fails on where numpy_ops does not: decoders differ in what they forgive."""

from __future__ import annotations

import re
from collections.abc import Callable

Fails = Callable[[list[int]], str | None]  # samples -> DALI's error on a batch of them, if any

_ABOUT_AN_IMAGE = re.compile(r"fn\.(decoders\.|peek_image_shape|io\.file\.read)")
_ABOUT_THE_MACHINE = re.compile(r"out of memory|bad_alloc|cuda|driver", re.IGNORECASE)
_REASON = re.compile(r"encountered:\s*(.*?)\s*(?:C\+\+ context|Current pipeline object|$)", re.DOTALL)


def is_image_error(error: str) -> bool:
    """Returns whether DALI's error is that of an operator that reads or decodes, and no lack of memory."""
    return bool(_ABOUT_AN_IMAGE.search(error)) and not _ABOUT_THE_MACHINE.search(error)


def bisect_bad_images(positions: list[int], fails: Fails) -> dict[int, str]:
    """Halves a batch that fails until single samples do.

    Args:
        positions: Of the samples.
        fails: Tries samples.

    Returns:
        Those that DALI fails on, with its reason.
    """
    error = fails(positions) if positions else None
    if error is None:
        return {}
    if len(positions) == 1:
        return {positions[0]: f"DALI can't decode it: {error_reason(error)}"}
    half = len(positions) // 2
    return bisect_bad_images(positions[:half], fails) | bisect_bad_images(positions[half:], fails)


def error_reason(error: str) -> str:
    """Returns what DALI says it encountered, in one line, without its traceback of the graph."""
    found = _REASON.search(error)
    return " ".join((found[1] if found else error).split()).rstrip(" :")
