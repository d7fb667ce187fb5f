"""Formulas of metrics of embeddings for the retrieval of images with the same identity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_BLOCK = 256  # number of queries that are processed together
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Search:
    """Settings for comparing images.

    Attributes:
        output: Name of the model's output that is the embedding.
        normalize: Whether the similarity of embeddings is their cosine. If False, it is their inner product.
        binarize: Function that converts embeddings into hash codes of -1 and 1: ``sign``, or ``round`` for
            values from 0 to 1; None for no conversion.
        rerank: Whether to use `ppcls.metric.functional.reranking.reranked_similarities`.
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
    """Returns recall@k: the share of queries that have their identity among the ``k`` nearest images.

    If images have equal similarities, images of other identities are ranked first. So the result does not
    depend on the order of images.

    Args:
        features: Embeddings, [N, D].
        labels: Identities, [N].
        topk: Values of k, all >= 1.
        queries: Number of queries. They are the first rows, and the other rows are the gallery. If None, each
            row is a query, and all other rows are its gallery.
        cameras: Number of the camera of each image, [N]. A query ignores images with its identity and its
            camera. None if cameras are unknown.
        search: Settings for comparing images.

    Returns:
        One value per k, 0..1. Queries whose identity has no image in the gallery are ignored; NaN if there
        are no other queries.
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
    """Returns precision@k: the mean share of images with the query's identity among the ``k`` nearest images.

    See `recalls_at` for the arguments, ignored queries and equal similarities. If the gallery has fewer than
    ``k`` images, the missing images count as wrong.
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
    """Returns the mean of the average precisions of all queries.

    The average precision of a query is the mean of the precisions at all images with the query's identity.
    The precision at an image is the share of images with this identity among all images that are at least as
    similar to the query. See `recalls_at` for the arguments and ignored queries.
    """

    def precision(matches: NDArray[np.float32], others: NDArray[np.float32]) -> float:
        matches = np.sort(matches)
        others = np.sort(others)
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
    """Yields the similarities of each query to images of its identity, and to images of other identities."""
    # The gallery starts at the row `first`.
    count, first = (len(labels), 0) if queries is None else (queries, queries)
    vectors = _comparable_vectors(features, search)
    reranked = None
    if search.rerank:
        from ppcls.metric.functional.reranking import reranked_similarities  # imports SciPy, which is slow

        reranked = reranked_similarities(_unit(vectors), queries)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        # In blocks, because all similarities of 100,000 images would need 40 GB.
        similar = vectors[begin:end] @ vectors[first:].T if reranked is None else reranked[begin:end]
        same = labels[begin:end, None] == labels[first:]
        matches = same.copy()
        if queries is None:  # a query must not match itself
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
