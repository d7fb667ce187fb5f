"""Reads indexes of images that older versions of ppcls wrote: a file with NumPy's arrays."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import get_args

import numpy as np

from ppcls.deploy.image_index import ImageIndex, Kind, import_faiss
from ppcls.errors import UserError, counted
from ppcls.files import open_regular
from ppcls.files.damaged import NUMPY_ERRORS


def read_index_file(file: Path) -> ImageIndex:
    """Returns the index in a file that an older version of ppcls wrote.

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
    except NUMPY_ERRORS as error:  # and those of json and FAISS
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
            f"{counted(len(names), 'file')}"
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
        faiss = import_faiss()
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
