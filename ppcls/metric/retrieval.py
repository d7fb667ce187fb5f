"""How well embeddings find images of the same identity, each among all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # queries at once
Floats = NDArray[np.float64]


def recalls_at(features: NDArray[np.float32], labels: Floats, topk: tuple[int, ...]) -> list[float]:
    """Returns the share of images with one of their identity among the ``k`` nearest, for each ``k``.

    Images of equal similarity go before those of the identity, so that their order does not matter.

    Args:
        features: [N, D].
        labels: [N], identities.
        topk: Each at least 1.

    Returns:
        As many as ``topk``, 0..1; NaN where no identity has two images.
    """
    ahead = [int((others >= own.max()).sum()) for own, others in _queries(features, labels)]
    return [float(np.mean(np.array(ahead) < k)) if ahead else float("nan") for k in topk]


def mean_average_precision(features: NDArray[np.float32], labels: Floats) -> float:
    """Returns the mean over images of the average precision of the others of their identity.

    At each of these, precision is their share among all that are at least as near. The arguments are those of
    `recalls_at`; NaN where no identity has two images.
    """

    def precision(own: NDArray[np.float32], others: NDArray[np.float32]) -> float:
        own, others = np.sort(own), np.sort(others)
        found = len(own) - np.searchsorted(own, own, side="left")
        return float(np.mean(found / (found + len(others) - np.searchsorted(others, own, side="left"))))

    each = [precision(own, others) for own, others in _queries(features, labels)]
    return float(np.mean(each)) if each else float("nan")


def _queries(
    features: NDArray[np.float32], labels: Floats
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yields, for each image, its similarities to others of its identity, and to those of all other ones."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.maximum(length, 1e-12)).astype(np.float32)
    for begin in range(0, len(unit), _BLOCK):
        similar = unit[begin : begin + _BLOCK] @ unit.T
        same = labels[begin : begin + _BLOCK, None] == labels
        own = same.copy()
        own[np.arange(len(own)), np.arange(begin, begin + len(own))] = False
        for row, mine, alike in zip(similar, own, same, strict=True):
            if mine.any():
                yield row[mine], row[~alike]
