"""How well embeddings find images of the same identity, each among all others, or queries in a gallery."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # queries at once
Floats = NDArray[np.float64]


def recalls_at(
    features: NDArray[np.float32], labels: Floats, topk: tuple[int, ...], queries: int | None = None
) -> list[float]:
    """Returns the share of images with one of their identity among the ``k`` nearest, for each ``k``.

    Images of equal similarity go before those of the identity, so that their order does not matter.

    Args:
        features: [N, D].
        labels: [N], identities.
        topk: Each at least 1.
        queries: So many, the first ones, look among the others; None: each among all others.

    Returns:
        As many as ``topk``, 0..1, over the images whose identity is there to find; NaN where there is none.
    """
    ahead = [int((others >= own.max()).sum()) for own, others in _queries(features, labels, queries)]
    return [float(np.mean(np.array(ahead) < k)) if ahead else float("nan") for k in topk]


def mean_average_precision(
    features: NDArray[np.float32], labels: Floats, queries: int | None = None
) -> float:
    """Returns the mean over images of the average precision of the others of their identity.

    At each of these, precision is their share among all that are at least as near. The arguments are those of
    `recalls_at`, and so is what counts.
    """

    def precision(own: NDArray[np.float32], others: NDArray[np.float32]) -> float:
        own, others = np.sort(own), np.sort(others)
        found = len(own) - np.searchsorted(own, own, side="left")
        return float(np.mean(found / (found + len(others) - np.searchsorted(others, own, side="left"))))

    each = [precision(own, others) for own, others in _queries(features, labels, queries)]
    return float(np.mean(each)) if each else float("nan")


def _queries(
    features: NDArray[np.float32], labels: Floats, queries: int | None
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yields, for each image, its similarities to others of its identity, and to those of all other ones."""
    asking, first = (len(labels), 0) if queries is None else (queries, queries)  # of the gallery
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.maximum(length, 1e-12)).astype(np.float32)
    for begin in range(0, asking, _BLOCK):
        end = min(begin + _BLOCK, asking)
        similar = unit[begin:end] @ unit[first:].T
        same = labels[begin:end, None] == labels[first:]
        own = same.copy()
        if queries is None:  # an image does not find itself
            own[np.arange(len(own)), np.arange(begin, end)] = False
        for row, mine, alike in zip(similar, own, same, strict=True):
            if mine.any():
                yield row[mine], row[~alike]
