"""Metrics of embeddings: how well images of the same identity are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # queries at once
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """How images are compared.

    Attributes:
        output: Output of the model that is the embedding.
        normalize: Whether embeddings are compared by their cosines, instead of their inner products.
        binarize: ``sign`` or, for values from 0 to 1, ``round``: the bits of hash codes as -1 and 1.
        rerank: Whether `ppcls.metric.reranking.reranked_similarities` compares images.
    """

    output: str = "features"
    normalize: bool = True
    binarize: Literal["sign", "round"] | None = None
    rerank: bool = False


PLAIN_SEARCH = Search()


def recalls_at(
    features: NDArray[np.float32],
    labels: Floats,
    topk: tuple[int, ...],
    queries: int | None = None,
    cameras: NDArray[np.int64] | None = None,
    search: Search = PLAIN_SEARCH,
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
        cameras: Camera of each image, [N]; a query ignores images of its identity from its own camera.
        search: How images are compared.

    Returns:
        One value per k, 0..1, over the queries whose identity has another image; NaN if there is none.
    """
    similarities = _queries(features, labels, queries, cameras, search)
    ahead = [int((others >= matches.max()).sum()) for matches, others in similarities]
    return [float(np.mean(np.array(ahead) < k)) if ahead else float("nan") for k in topk]


def precisions_at(
    features: NDArray[np.float32],
    labels: Floats,
    topk: tuple[int, ...],
    queries: int | None = None,
    cameras: NDArray[np.int64] | None = None,
    search: Search = PLAIN_SEARCH,
) -> list[float]:
    """Returns, for each ``k``, the mean share of the identity among the ``k`` nearest images.

    Arguments, queries and ties as in `recalls_at`. With fewer than ``k`` images, absent ones count as wrong.
    """
    shares: list[list[float]] = []
    for matches, others in _queries(features, labels, queries, cameras, search):
        matches = np.sort(matches)[::-1]
        rank = np.arange(len(matches)) + len(others) - np.searchsorted(np.sort(others), matches, side="left")
        shares.append([float((rank < k).sum()) / k for k in topk])
    return np.mean(shares, axis=0).tolist() if shares else [float("nan")] * len(topk)


def mean_average_precision(
    features: NDArray[np.float32],
    labels: Floats,
    queries: int | None = None,
    cameras: NDArray[np.int64] | None = None,
    search: Search = PLAIN_SEARCH,
) -> float:
    """Returns the mean average precision of queries; arguments and queries as in `recalls_at`.

    At each image of the identity, precision is the share of its identity among all images at least as near.
    """

    def precision(matches: NDArray[np.float32], others: NDArray[np.float32]) -> float:
        matches, others = np.sort(matches), np.sort(others)
        hits = len(matches) - np.searchsorted(matches, matches, side="left")
        return float(np.mean(hits / (hits + len(others) - np.searchsorted(others, matches, side="left"))))

    similarities = _queries(features, labels, queries, cameras, search)
    precisions = [precision(matches, others) for matches, others in similarities]
    return float(np.mean(precisions)) if precisions else float("nan")


def _queries(
    features: NDArray[np.float32],
    labels: Floats,
    queries: int | None,
    cameras: NDArray[np.int64] | None,
    search: Search,
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yields, for each query, its similarities to its own identity and to all others."""
    count, first = (len(labels), 0) if queries is None else (queries, queries)  # first row of the gallery
    vectors = _comparable_vectors(features, search)
    reranked = None
    if search.rerank:
        from ppcls.metric.reranking import reranked_similarities  # imports SciPy, which is slow

        reranked = reranked_similarities(_unit(vectors), queries)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        similar = vectors[begin:end] @ vectors[first:].T if reranked is None else reranked[begin:end]
        same = labels[begin:end, None] == labels[first:]
        matches = same.copy()
        if queries is None:  # a query does not find itself
            matches[np.arange(len(matches)), np.arange(begin, end)] = False
        if cameras is not None:
            matches &= cameras[begin:end, None] != cameras[first:]
        for row, match, identical in zip(similar, matches, same, strict=True):
            if match.any():
                yield row[match], row[~identical]


def _unit(features: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (features / np.maximum(length, 1e-12)).astype(np.float32)
    return unit


def _comparable_vectors(features: NDArray[np.float32], search: Search) -> NDArray[np.float32]:
    """Returns vectors whose inner products are the similarities of images."""
    features = _unit(features) if search.normalize else features
    match search.binarize:
        case "sign":
            return np.sign(features).astype(np.float32)
        case "round":
            return (2 * np.rint(features) - 1).astype(np.float32)
    return features
