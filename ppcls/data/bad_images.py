"""Names the images that a batch failed on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ppcls.config.transform import Transform
from ppcls.data.index import Index
from ppcls.data.numpy_ops import DecodeError, apply
from ppcls.errors import UserError

_SHOWN = 10


class BadImageError(UserError):
    """Images that can't be read or decoded, each with its place in the list and the reason."""


def describe_sample(index: Index, position: int, reason: str) -> str:
    """Returns ``path (list, line N): reason``."""
    return f"{index.name(position)} ({index.where(position)}): {reason}"


def bad_images(samples: Sequence[str]) -> BadImageError:
    """Returns the error that shows the first ten of what `describe_sample` said."""
    more = [f"… and {len(samples) - _SHOWN} more"] if len(samples) > _SHOWN else []
    return BadImageError("\n".join([*samples[:_SHOWN], *more]))


def explain_failure(
    index: Index, decoder: Transform, positions: NDArray[np.int64], error: Exception
) -> Exception:
    """Finds out which images made a batch fail.

    Args:
        index: The samples.
        decoder: The chain's first transform.
        positions: [N] of the batches that were under way.
        error: What the loader said.

    Returns:
        A `BadImageError` that names the images; ``error`` where all of them decode.
    """
    bad = []
    for position in dict.fromkeys(positions.tolist()):
        try:
            apply(decoder, index.read(position), ())
        except DecodeError as reason:
            bad.append(describe_sample(index, position, str(reason)))
    return bad_images(bad) if bad else error
