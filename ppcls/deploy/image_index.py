"""Finds the nearest images by their embeddings, with FAISS, or with NumPy if FAISS is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.files import one_line
from ppcls.metric.functional.reranking import reranked_similarities
from ppcls.postprocess.results import NearestImages

Kind = Literal["flat", "hnsw"]
Floats = NDArray[np.float32]
_RERANKED = 100  # number of nearest images that are re-ranked
# parameters of HNSW: links per image, and candidates per search
_LINKS = 32
_SEARCHED = 128
_SIMILARITIES = 1 << 24  # number of similarities that are computed together without FAISS
_SAME_MODEL = 0.9  # minimum similarity of two models' embeddings of the test image


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """Index that finds the nearest images by comparing embeddings.

    Attributes:
        files: Paths of N images, N > 0.
        vectors: Embeddings of the images, of length 1, [N, D] float32.
        kind: ``flat`` compares a query with all images; ``hnsw`` is approximate, faster for millions of
            images, and needs FAISS.
        model: Path of the model that computed the embeddings.
        probe: The model's embedding of a test image, [D]; [0] if the model does not accept the test image.
        stored: FAISS index of the first images, which was read from a file; None to build it. The other
            images are compared with each query.
        removed: Row numbers of images that no search returns.
    """

    files: Sequence[Path]
    vectors: Floats
    kind: Kind = "flat"
    model: str = ""
    probe: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    stored: Any = None
    removed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.files) - len(self.removed)

    @cached_property
    def engine(self) -> str:
        """Name of the library that searches, and its method."""
        has_faiss = import_faiss(required=self.kind == "hnsw") is not None
        return f"FAISS ({self.kind})" if has_faiss else "NumPy (exact)"

    def nearest(self, queries: Floats, count: int, rerank: bool = False) -> list[NearestImages]:
        """Returns the nearest images of each query: ``count`` images, or all if the index has fewer.

        Args:
            queries: Embeddings of length 1, [Q, D].
            count: Number of images per query.
            rerank: Whether to order the 100 nearest images by `reranked_similarities`. The result contains
                cosine similarities in any case.

        Raises:
            UserError: The length of the queries differs from that of the embeddings in the index, or the
                index is damaged.
        """
        self._check_width(queries.shape[1])
        candidates = min(max(count, _RERANKED if rerank else 0), len(self))
        rows, similarities = self._search(np.ascontiguousarray(queries, np.float32), candidates)
        results = []
        for query, row, similarity in zip(queries, rows, similarities, strict=True):
            valid = row >= 0  # HNSW may find fewer images; it then returns -1
            if not (np.isfinite(similarity[valid]).all() and (valid.all() or self.kind == "hnsw")):
                raise UserError("the index has embeddings with NaN or infinity; build the index again")
            row = row[valid]
            similarity = similarity[valid]
            if rerank:
                unit = np.concatenate([query[None], self.vectors[row]])
                order = np.argsort(-reranked_similarities(unit, 1)[0], kind="stable")
                row = row[order]
                similarity = similarity[order]
            names = tuple(self.files[index] for index in row[:count])
            results.append(NearestImages(names, tuple(similarity[:count].tolist())))
        return results

    def check_model(self, predictor: Predictor) -> None:
        """Checks that a model is the one that computed the embeddings of the index.

        Raises:
            UserError: The length of its embeddings or its embedding of the test image differs.
        """
        probe = probe_embedding(predictor)
        width = predictor.description.width
        if len(probe) or width != -1:
            self._check_width(len(probe) or width, f"{predictor.source.file}: ")
        if len(probe) == len(self.probe) > 0 and (similarity := float(probe @ self.probe)) < _SAME_MODEL:
            raise UserError(
                f"{predictor.source.file}: not the model of the index: the embeddings of a test image have "
                f"the similarity {similarity:.2f}, expected at least {_SAME_MODEL}; use "
                f"{one_line(self.model)}"
            )

    def _check_width(self, width: int, where: str = "") -> None:
        if width != (expected := self.vectors.shape[1]):
            raise UserError(
                f"{where}returns embeddings of {width} values, but those of the index have {expected}; "
                f"use the model of the index: {one_line(self.model)}"
            )

    @cached_property
    def graph(self) -> Any:
        """FAISS index of kind ``hnsw``."""
        if self.stored is not None:
            return self.stored
        faiss = import_faiss()
        index = faiss.IndexHNSWFlat(self.vectors.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.add(self.vectors)
        return index

    def _search(self, queries: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
        """Returns the row numbers and similarities of the nearest images, [Q, count] each."""
        if self.kind == "hnsw":
            return self._search_graph(queries, count)
        if (faiss := import_faiss(required=False)) is not None:
            # An index of FAISS would hold a copy of all vectors.
            metric = faiss.METRIC_INNER_PRODUCT
            similarities, rows = faiss.knn(queries, self.vectors, count, metric=metric)
            return rows, similarities
        return _search_with_numpy(queries, self.vectors, count)

    def _search_graph(self, queries: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
        faiss = import_faiss()
        # Graphs can't forget images, so a search skips those that were removed.
        selector = faiss.IDSelectorNot(faiss.IDSelectorBatch(self.removed)) if len(self.removed) else None
        parameters = faiss.SearchParametersHNSW(efSearch=max(_SEARCHED, count), sel=selector)
        similarities, rows = self.graph.search(queries, count, params=parameters)
        first = self.graph.ntotal
        if first == len(self.vectors):
            return rows, similarities
        kept = np.setdiff1d(np.arange(first, len(self.vectors)), self.removed)
        rows = np.concatenate([rows, np.broadcast_to(kept, (len(queries), len(kept)))], axis=1)
        exact = queries @ self.vectors[kept].T
        similarities = np.concatenate([np.where(rows[:, :count] < 0, -np.inf, similarities), exact], axis=1)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(similarities, order, axis=1)


def _search_with_numpy(queries: Floats, vectors: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Returns the row numbers and similarities of the nearest vectors, [Q, count] each, in linear time.

    Equally similar vectors are in the order of their rows.
    """
    rows = np.zeros((len(queries), count), np.int64)
    similarities = np.zeros((len(queries), count), np.float32)
    size = max(1, _SIMILARITIES // len(vectors))
    for start in range(0, len(queries), size):
        for at, values in enumerate(queries[start : start + size] @ vectors.T, start=start):
            if not np.isfinite(values).all():  # they have no order
                similarities[at] = np.nan
                continue
            chosen = np.arange(len(values))
            if count < len(values):
                smallest = np.partition(values, -count)[-count]
                above = np.flatnonzero(values > smallest)
                equal = np.flatnonzero(values == smallest)[: count - len(above)]
                chosen = np.sort(np.concatenate([above, equal]))
            rows[at] = chosen[np.argsort(-values[chosen], kind="stable")]
            similarities[at] = values[rows[at]]
    return rows, similarities


def probe_embedding(predictor: Predictor) -> Floats:
    """Returns a model's embedding of a test image, [D]; [0] for a model that does not accept RGB images."""
    ramp = np.arange(64, dtype=np.uint8)
    planes = np.add.outer(3 * ramp, ramp), np.multiply.outer(ramp, ramp), np.add.outer(ramp, 2 * ramp)
    try:
        return predictor.embed([np.stack(planes, axis=2)])[0].vector
    except ValueError:
        return np.zeros(0, np.float32)


def import_faiss(required: bool = True) -> Any:
    """Returns the module ``faiss``, or None if it is missing and not required.

    Raises:
        UserError: The module is missing and required.
    """
    try:
        import faiss
    except ModuleNotFoundError:
        if required:
            raise UserError("an index of kind hnsw needs FAISS: pip install '.[retrieval]'") from None
        return None
    return faiss
