"""Re-ranks retrieved images by their common nearest neighbors (Zhong et al. 2017, arXiv:1701.08398)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

# k1, k2 and lambda in the paper; also the values of PaddleClas
_K1 = 20
_K2 = 6
_WEIGHT = 0.3
_BLOCK = 256  # number of rows that are processed together
Floats = NDArray[np.float32]


def reranked_similarities(unit: Floats, queries: int | None = None) -> Floats:
    """Returns similarities that depend on the common nearest neighbors of two images.

    A similarity is 1 minus the distance of the paper, ``0.7 * J + 0.3 * E``. ``J`` is the Jaccard distance of
    the images' k-reciprocal neighbors. ``E`` is the squared Euclidean distance, divided by the largest one of
    the query.

    Args:
        unit: Embeddings of length 1, [N, D].
        queries: Number Q of queries. They are the first rows, and the other rows are the gallery. If None,
            each row is a query, and all rows are the gallery.

    Returns:
        Similarity of each query to each row of the gallery, [Q, N - Q]; [N, N] if ``queries`` is None.
    """
    count, first = (len(unit), 0) if queries is None else (queries, queries)
    nearest, farthest = _neighbors(unit)
    near = _reciprocal(nearest, _K1 + 1)
    half = _reciprocal(nearest, _K1 // 2 + 1)
    # If most neighbors of a neighbor are also neighbors of the image, all of them are added to the image's
    # neighbors.
    shared = (near @ half.T).multiply(near)
    sizes = np.asarray(half.sum(axis=1)).ravel()
    # More than 2/3 of the neighbors, as in the paper. Whole numbers have no rounding errors.
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
        # The weights of each image sum to 1, so that the sum of the maxima is 2 minus that of the minima.
        result[row] = 1 - (1 - _WEIGHT) * (1 - common / (2 - common)) - _WEIGHT * distance
    return result


def _neighbors(unit: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Returns the nearest rows of each row, [N, k], and the largest squared distance of each row, [N].

    The nearest row is the row itself.
    """
    nearest = []
    farthest = []
    for begin in range(0, len(unit), _BLOCK):
        distances = 2 - 2 * unit[begin : begin + _BLOCK] @ unit.T
        farthest.append(np.maximum(distances.max(axis=1), 1e-12))
        inside = np.arange(len(distances))
        # With rounding errors, a copy of the image could be nearer to it than the image itself.
        distances[inside, begin + inside] = -1.0
        k = min(_K1 + 1, len(unit))
        best = np.argpartition(distances, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(distances, best, axis=1), axis=1, kind="stable")
        nearest.append(np.take_along_axis(best, order, axis=1))
    return np.concatenate(nearest), np.concatenate(farthest)


def _members(columns: NDArray[np.intp]) -> Any:
    """Returns a sparse matrix, [N, N], that is 1 in the columns that are listed for each row, [N, k]."""
    count, k = columns.shape
    ones = np.ones(count * k, np.float32)
    return sparse.csr_matrix((ones, (np.repeat(np.arange(count), k), columns.ravel())), (count, count))


def _reciprocal(nearest: NDArray[np.intp], k: int) -> Any:
    """Returns a sparse matrix, [N, N], that is 1 if two rows are among each other's ``k`` nearest rows."""
    near = _members(nearest[:, :k])
    return near.multiply(near.T).tocsr()
