"""Re-ranking of retrieved images by the neighbors they share (Zhong et al. 2017, arXiv:1701.08398)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_K1, _K2, _WEIGHT = 20, 6, 0.3  # as in the paper and in PaddleClas
_BLOCK = 256  # rows at once
Floats = NDArray[np.float32]


def reranked_similarities(unit: Floats, queries: int | None = None) -> Floats:
    """Returns similarities that take into account which nearest neighbors two images share.

    They are 1 minus the paper's distance: 0.7 of the Jaccard distance of the images' k-reciprocal neighbors,
    and 0.3 of their squared Euclidean distance, as a share of the query's largest one.

    Args:
        unit: Embeddings of length 1, [N, D].
        queries: Number Q of first rows that are queries, with the other rows as gallery; None: each row is
            a query among all rows.

    Returns:
        [Q, N - Q], or [N, N] without ``queries``.
    """
    count, first = (len(unit), 0) if queries is None else (queries, queries)
    nearest, farthest = _neighbors(unit)
    near, half = _reciprocal(nearest, _K1 + 1), _reciprocal(nearest, _K1 // 2 + 1)
    # Neighbors whose own neighbors are mostly neighbors of the image add theirs.
    shared = (near @ half.T).multiply(near)
    sizes = np.asarray(half.sum(axis=1)).ravel()
    trusted = shared.multiply(sparse.csr_matrix(3 * shared > 2 * near.multiply(sizes)))
    rows, columns = (near + trusted.astype(bool).astype(np.float32) @ half).nonzero()
    distances = 2 - 2 * np.einsum("nd,nd->n", unit[rows], unit[columns])
    weights = sparse.csr_matrix((np.exp(-distances / farthest[rows]), (rows, columns)), near.shape)
    weights = sparse.diags(1 / np.asarray(weights.sum(axis=1)).ravel()) @ weights
    weights = (_members(nearest[:, :_K2]) @ weights / nearest[:, :_K2].shape[1]).tocsr()
    gallery = weights[first:].tocsc()
    result = np.empty((count, len(unit) - first), np.float32)
    for row in range(count):
        mine = weights[row]
        others = gallery[:, mine.indices]
        others.data = np.minimum(others.data, np.repeat(mine.data, np.diff(others.indptr)))
        common = np.asarray(others.sum(axis=1)).ravel()
        distance = (2 - 2 * unit[first:] @ unit[row]) / farthest[row]
        result[row] = 1 - (1 - _WEIGHT) * (1 - common / (2 - common)) - _WEIGHT * distance
    return result


def _neighbors(unit: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Returns each row's nearest rows, itself first, [N, k], and its largest squared distance [N]."""
    nearest, farthest = [], []
    for begin in range(0, len(unit), _BLOCK):
        distances = 2 - 2 * unit[begin : begin + _BLOCK] @ unit.T
        farthest.append(np.maximum(distances.max(axis=1), 1e-12))
        inside = np.arange(len(distances))
        distances[inside, begin + inside] = -1.0
        k = min(_K1 + 1, len(unit))
        best = np.argpartition(distances, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(distances, best, axis=1), axis=1, kind="stable")
        nearest.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(nearest), np.concatenate(farthest)


def _members(columns: NDArray[np.intp]) -> Any:
    """Returns a sparse matrix [N, N] that is 1 in the given columns of each row."""
    count, k = columns.shape
    ones = np.ones(count * k, np.float32)
    return sparse.csr_matrix((ones, (np.repeat(np.arange(count), k), columns.ravel())), (count, count))


def _reciprocal(nearest: NDArray[np.intp], k: int) -> Any:
    """Returns a sparse matrix that is 1 where two rows are among the ``k`` nearest of each other."""
    near = _members(nearest[:, :k])
    return near.multiply(near.T).tocsr()
