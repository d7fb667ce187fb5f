"""Metrics of embeddings: how well images of the same identity are found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # queries at once
Floats = NDArray[np.float64]


def recalls_at(
    features: NDArray[np.float32],
    labels: Floats,
    topk: tuple[int, ...],
    queries: int | None = None,
    rerank: bool = False,
) -> list[float]:
    """Returns, for each ``k``, the share of queries with their identity among the ``k`` nearest images.

    Among images of equal similarity, those of other identities come first, so that their order does not
    matter.

    Args:
        features: Embeddings [N, D].
        labels: Identities [N].
        topk: Values of k >= 1.
        queries: Number of first rows that are queries, with the other rows as gallery; None: each row is a
            query among all others.
        rerank: Whether to compare images by `ppcls.metric.reranking.reranked_similarities`.

    Returns:
        One value per k, 0..1, over the queries whose identity has another image; NaN if there is none.
    """
    similarities = _queries(features, labels, queries, rerank)
    ahead = [int((others >= matches.max()).sum()) for matches, others in similarities]
    return [float(np.mean(np.array(ahead) < k)) if ahead else float("nan") for k in topk]


def mean_average_precision(
    features: NDArray[np.float32], labels: Floats, queries: int | None = None, rerank: bool = False
) -> float:
    """Returns the mean average precision of queries; arguments and queries as in `recalls_at`.

    At each image of the identity, precision is the share of its identity among all images at least as near.
    """

    def precision(matches: NDArray[np.float32], others: NDArray[np.float32]) -> float:
        matches, others = np.sort(matches), np.sort(others)
        hits = len(matches) - np.searchsorted(matches, matches, side="left")
        return float(np.mean(hits / (hits + len(others) - np.searchsorted(others, matches, side="left"))))

    similarities = _queries(features, labels, queries, rerank)
    precisions = [precision(matches, others) for matches, others in similarities]
    return float(np.mean(precisions)) if precisions else float("nan")


def _queries(
    features: NDArray[np.float32], labels: Floats, queries: int | None, rerank: bool
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yields, for each query, its similarities to its own identity and to all others."""
    count, first = (len(labels), 0) if queries is None else (queries, queries)  # first row of the gallery
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.maximum(length, 1e-12)).astype(np.float32)
    reranked = None
    if rerank:
        from ppcls.metric.reranking import reranked_similarities  # imports SciPy, which is slow

        reranked = reranked_similarities(unit, queries)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        similar = unit[begin:end] @ unit[first:].T if reranked is None else reranked[begin:end]
        same = labels[begin:end, None] == labels[first:]
        matches = same.copy()
        if queries is None:  # a query does not find itself
            matches[np.arange(len(matches)), np.arange(begin, end)] = False
        for row, match, identical in zip(similar, matches, same, strict=True):
            if match.any():
                yield row[match], row[~identical]
