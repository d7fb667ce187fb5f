"""Index of image embeddings in one file. FAISS searches it, or NumPy if FAISS is not installed."""

from __future__ import annotations

import json
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.files import atomic_write, open_regular
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
# Errors that NumPy, zipfile, json and FAISS raise for invalid files.
_DAMAGED = (
    *(ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, struct.error),
    *(RecursionError, RuntimeError, MemoryError, OverflowError, SyntaxError, tokenize.TokenError),
)


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
        stored: FAISS index that was read from a file; None to build it.
    """

    files: tuple[Path, ...]
    vectors: Floats
    kind: Kind = "flat"
    model: str = ""
    probe: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    stored: Any = None

    @cached_property
    def engine(self) -> str:
        """Name of the library that searches, and its method."""
        has_faiss = _import_faiss(required=self.kind == "hnsw") is not None
        return f"FAISS ({self.kind})" if has_faiss else "NumPy (exact)"

    def nearest(self, queries: Floats, count: int, rerank: bool = False) -> list[NearestImages]:
        """Returns the nearest images of each query: ``count`` images, or all if the index has fewer.

        Args:
            queries: Embeddings of length 1, [Q, D].
            count: Number of images per query.
            rerank: Whether to order the 100 nearest images by `reranked_similarities`. The result contains
                cosine similarities in any case.

        Raises:
            UserError: The length of the queries differs from that of the embeddings in the index.
        """
        self._check_width(queries.shape[1])
        candidates = min(max(count, _RERANKED if rerank else 0), len(self.files))
        rows, similarities = self._search(np.ascontiguousarray(queries, np.float32), candidates)
        results = []
        for query, row, similarity in zip(queries, rows, similarities, strict=True):
            valid = row >= 0  # HNSW may find fewer images; it then returns -1
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

    def added(self, embeddings: Mapping[Path, Floats]) -> ImageIndex:
        """Returns a copy of the index with more images. Images that are already in it are replaced."""
        rows = {file: row for row, file in enumerate(self.files) if file in embeddings}
        new = {file: vector for file, vector in embeddings.items() if file not in rows}
        added = np.array([*new.values()], np.float32).reshape(len(new), self.vectors.shape[1])
        vectors = np.concatenate([self.vectors, added])
        for file, row in rows.items():
            vectors[row] = embeddings[file]
        return replace(self, files=(*self.files, *new), vectors=vectors, stored=None)

    def without(self, paths: Sequence[Path]) -> ImageIndex:
        """Returns a copy of the index without the images at some paths or in some folders.

        Raises:
            UserError: A path matches no image of the index, or no image remains.
        """
        # The parents of each of a million files would take 12 s.
        folders = tuple(str(path).rstrip("/") + "/" for path in paths)
        names = {str(path) for path in paths}
        everywhere = Path() in paths
        removed = [
            file
            for file in self.files
            if (name := str(file)) in names
            or name.startswith(folders)
            or (everywhere and not file.is_absolute())
        ]
        if unknown := set(paths).difference(*({file, *file.parents} for file in removed)):
            raise UserError(
                f"{min(unknown)}: not in the index; expected a path under which an image was added, such as "
                f"{self.files[0]}, or a folder of such paths"
            )
        gone = set(removed)
        kept = np.array([file not in gone for file in self.files])
        if not kept.any():
            raise UserError(
                "expected an index with at least one image, found none after the removal; delete the file of "
                "the index instead"
            )
        files = tuple(file for file, keep in zip(self.files, kept, strict=True) if keep)
        return replace(self, files=files, vectors=self.vectors[kept], stored=None)

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
                f"the similarity {similarity:.2f}, expected at least {_SAME_MODEL}; use {self.model}"
            )

    def _check_width(self, width: int, where: str = "") -> None:
        if width != (expected := self.vectors.shape[1]):
            raise UserError(
                f"{where}returns embeddings of {width} values, but those of the index have {expected}; "
                f"use the model of the index: {self.model}"
            )

    def save(self, file: Path) -> None:
        """Writes the index to a file, atomically."""
        about = {"kind": self.kind, "model": self.model, "files": [str(path) for path in self.files]}
        arrays: dict[str, Any] = {"probe": self.probe, "vectors": self.vectors}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        if self.kind == "hnsw":
            arrays["faiss"] = _import_faiss().serialize_index(self._faiss)
        with atomic_write(file) as stream:
            np.savez(stream, allow_pickle=False, **arrays)

    @cached_property
    def _faiss(self) -> Any:
        """FAISS index of kind ``hnsw``."""
        faiss = _import_faiss()
        if self.stored is not None:
            return self.stored
        index = faiss.IndexHNSWFlat(self.vectors.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.add(self.vectors)
        return index

    def _search(self, queries: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
        """Returns the row numbers and similarities of the nearest images, [Q, count] each."""
        if self.kind == "hnsw":
            self._faiss.hnsw.efSearch = max(_SEARCHED, count)
            similarities, rows = self._faiss.search(queries, count)
            return rows, similarities
        if (faiss := _import_faiss(required=False)) is not None:
            # An index of FAISS would hold a copy of all vectors.
            metric = faiss.METRIC_INNER_PRODUCT
            similarities, rows = faiss.knn(queries, self.vectors, count, metric=metric)
            return rows, similarities
        return _search_with_numpy(queries, self.vectors, count)


def _search_with_numpy(queries: Floats, vectors: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Returns the row numbers and similarities of the nearest vectors, [Q, count] each, in linear time.

    Equally similar vectors are in the order of their rows.
    """
    rows = np.zeros((len(queries), count), np.int64)
    similarities = np.zeros((len(queries), count), np.float32)
    size = max(1, _SIMILARITIES // len(vectors))
    for start in range(0, len(queries), size):
        for at, values in enumerate(queries[start : start + size] @ vectors.T, start=start):
            chosen = np.arange(len(values))
            if count < len(values):
                smallest = np.partition(values, -count)[-count]
                above = np.flatnonzero(values > smallest)
                equal = np.flatnonzero(values == smallest)[: count - len(above)]
                chosen = np.sort(np.concatenate([above, equal]))
            rows[at] = chosen[np.argsort(-values[chosen], kind="stable")]
            similarities[at] = values[rows[at]]
    return rows, similarities


def load_index(file: Path) -> ImageIndex:
    """Returns the index in a file that `ImageIndex.save` wrote.

    Raises:
        UserError: The file is missing, cannot be read, or is not an index.
    """
    try:
        with open_regular(file) as stream:
            arrays = np.load(stream, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("expected an archive, found one array")
            with arrays:
                return _read_index(arrays)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; create an index with ppcls index build") from None
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read as an index: {error.strerror or error}; expected a file written by "
            "ppcls index build that you can read"
        ) from None
    except _DAMAGED as error:
        raise UserError(
            f"{file}: expected a file written by ppcls index: {error}; build the index again"
        ) from None


def _read_index(arrays: np.lib.npyio.NpzFile) -> ImageIndex:
    members = [] if arrays.zip is None else arrays.zip.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        # Compressed arrays could be much larger than the file.
        raise ValueError("expected uncompressed arrays, found compressed arrays")
    encoded, vectors, probe = (np.asarray(arrays[name]) for name in ("about", "vectors", "probe"))
    about = json.loads(encoded.tobytes())
    names = about["files"]
    kind = about["kind"]
    if kind not in get_args(Kind) or not isinstance(names, list):
        raise ValueError(
            f"expected kind flat or hnsw and a list of files, got kind {kind!r}, files {type(names).__name__}"
        )
    if vectors.ndim != 2 or vectors.shape[0] != len(names) or not vectors.size:
        raise ValueError(
            f"array 'vectors': expected one vector per file, and at least one, got shape {vectors.shape} for "
            f"{len(names)} files"
        )
    if probe.shape not in ((0,), vectors.shape[1:]):
        raise ValueError(
            f"array 'probe': expected {vectors.shape[1:]}, the shape of one vector, got {probe.shape}"
        )
    for name, array in (("vectors", vectors), ("probe", probe)):
        if array.dtype != np.float32 or not np.isfinite(array).all():
            actual = "NaN or infinity" if array.dtype == np.float32 else array.dtype
            raise ValueError(f"array '{name}': expected finite float32 numbers, got {actual}")
    stored = None
    if kind == "hnsw":
        faiss = _import_faiss()
        content = np.asarray(arrays["faiss"])
        if content.dtype != np.uint8 or content.ndim != 1:
            raise ValueError(f"FAISS index: expected bytes, got {content.dtype} {content.shape}")
        stored = faiss.deserialize_index(content)
        if not isinstance(stored, faiss.IndexHNSWFlat) or (stored.ntotal, stored.d) != vectors.shape:
            raise ValueError(
                f"FAISS index: expected IndexHNSWFlat with vectors of shape {vectors.shape}, got "
                f"{type(stored).__name__} with {(stored.ntotal, stored.d)}"
            )
    return ImageIndex(
        tuple(map(_to_path, names)), vectors, kind, str(_to_path(about["model"])), probe, stored
    )


def _to_path(name: str) -> Path:
    if b"\0" in os.fsencode(name):
        raise ValueError(f"expected paths without a NUL character, found {name!r}")
    return Path(name)


def probe_embedding(predictor: Predictor) -> Floats:
    """Returns a model's embedding of a test image, [D]; [0] for a model that does not accept RGB images."""
    ramp = np.arange(64, dtype=np.uint8)
    planes = np.add.outer(3 * ramp, ramp), np.multiply.outer(ramp, ramp), np.add.outer(ramp, 2 * ramp)
    try:
        return predictor.embed([np.stack(planes, axis=2)])[0].vector
    except ValueError:
        return np.zeros(0, np.float32)


def _import_faiss(required: bool = True) -> Any:
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
