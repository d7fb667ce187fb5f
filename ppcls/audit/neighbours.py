"""Finds the most similar pictures of each picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
COUNT = 10  # neighbours of each picture
_DIMENSIONS = 128  # of the vectors that are compared
_SAMPLE = 5_000  # pictures from which the principal components are computed
_BLOCK = 128


@dataclass(frozen=True)
class Neighbours:
    """The nearest neighbours of each picture.

    Attributes:
        positions: Neighbours in the order of their distance, [N, K] int64; -1 if there are fewer.
        distances: 1 minus the cosine of the centred vectors, [N, K] float32, 0..2; infinite for no neighbour.
        typical: Median distance of the nearest neighbours.
    """

    positions: NDArray[np.int64]
    distances: Floats
    typical: float


def find_neighbours(vectors: Floats, check: Callable[[], None] = lambda: None) -> Neighbours:
    """Returns the nearest neighbours of each vector, by exact search.

    Long vectors are projected to their 128 principal components. For 70,000 pictures this takes minutes, and
    a block of distances, its negative and its order need 140 MB.

    Args:
        vectors: [N, D]; NaN for pictures that can't be read.
        check: Function that is called after each block; it may raise an exception to stop.
    """
    known = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    positions = np.full((len(vectors), COUNT), -1, np.int64)
    distances = np.full((len(vectors), COUNT), np.inf, np.float32)
    if len(known) < 2:
        return Neighbours(positions, distances, 0.0)
    unit = project(vectors[known])
    count = min(COUNT, len(known) - 1)
    for start in range(0, len(known), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(known)))
        similarity = unit[rows] @ unit.T
        similarity[np.arange(len(rows)), rows] = -np.inf
        nearest = np.argpartition(-similarity, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(similarity, nearest, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        positions[known[rows], :count] = known[np.take_along_axis(nearest, order, axis=1)]
        distances[known[rows], :count] = 1 - np.take_along_axis(values, order, axis=1)
        check()
    return Neighbours(positions, distances, float(np.median(distances[known, 0])))


def project(vectors: Floats) -> Floats:
    """Returns centred vectors of length 1 with at most 128 principal components, [N, 128 or less].

    Up to 128 vectors are only rotated into the space that they span, which changes no distance.

    Args:
        vectors: Finite vectors, [N, D].
    """
    sample = vectors[:: max(1, len(vectors) // _SAMPLE)]
    centred = vectors - sample.mean(axis=0)
    if len(vectors) <= _DIMENSIONS < vectors.shape[1]:
        centred = np.linalg.qr(centred.T.astype(np.float64)).R.T
    elif vectors.shape[1] > _DIMENSIONS:
        covariance = np.cov(sample.T.astype(np.float64))
        components = np.linalg.eigh(covariance)[1][:, : -_DIMENSIONS - 1 : -1]
        centred = centred @ components.astype(np.float32)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    unit: Floats = (centred / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
