"""Resizes learned position embeddings to another number of patches, so that weights fit another image size.

The formula is that of PyTorch's bicubic interpolation with antialiasing, which timm uses, so that the results
agree. Paddle has no antialiasing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CUBIC = -0.5  # parameter of Keys's cubic kernel with antialiasing, as in Pillow
_SUPPORT = 2.0  # radius of the kernel


def resize_positions(embedding: NDArray[Any], prefix: int, patches: int) -> NDArray[Any] | None:
    """Returns position embeddings for another number of patches; None if the numbers are not squares.

    Args:
        embedding: Embeddings of a prefix, such as the class token, and of patches row by row, [1, N, C].
        prefix: Number of embeddings that precede those of the patches and stay unchanged.
        patches: Number of patches in the result.
    """
    old_side = math.isqrt(max(embedding.shape[1] - prefix, 0))
    side = math.isqrt(max(patches, 0))
    if old_side**2 != embedding.shape[1] - prefix or side**2 != patches or not old_side * side:
        return None
    weights = _interpolation(old_side, side)
    grid = embedding[0, prefix:].astype(np.float64).reshape(old_side, old_side, -1)
    resized = np.einsum("yi,xj,ijc->yxc", weights, weights, grid, optimize=True)
    resized = resized.reshape(1, patches, -1).astype(embedding.dtype)
    return np.concatenate([embedding[:, :prefix], resized], axis=1)


def _interpolation(old: int, new: int) -> NDArray[np.float64]:
    """Returns the weight of each old sample in each new sample, [new, old]."""
    scale = old / new
    stretch = max(scale, 1.0)  # antialiasing widens the kernel when the side shrinks
    centers = (np.arange(new) + 0.5) * scale
    distances = np.abs((np.arange(old) + 0.5)[None] - centers[:, None]) / stretch
    near = (_CUBIC + 2) * distances**3 - (_CUBIC + 3) * distances**2 + 1
    far = _CUBIC * (distances**3 - 5 * distances**2 + 8 * distances - 4)
    weights = np.where(distances < 1, near, np.where(distances < _SUPPORT, far, 0.0))
    normalized: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return normalized
