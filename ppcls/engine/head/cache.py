"""Stores features of images on disk, by the content of the image and what computed the features."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.index.protocol import Index
from ppcls.files import atomic_write
from ppcls.files.damaged import NUMPY_ERRORS

Floats = NDArray[np.float32]
KEY_SIZE = 16  # bytes of a hash


def hash_contents(index: Index, positions: Iterable[int] | None = None) -> dict[int, bytes]:
    """Returns the hash of the content of each image, by position. Images that can't be read are missing."""
    hashes: dict[int, bytes] = {}
    for position in range(len(index)) if positions is None else positions:
        try:
            content = index.read(position)
        except DecodeError:
            continue  # the loader reports or skips the image
        hashes[position] = hashlib.blake2b(content, digest_size=KEY_SIZE).digest()
    return hashes


def hash_arrays(arrays: Mapping[str, NDArray[Any]], about: object) -> str:
    """Returns a hash of weights and of plain data, which identifies what computes features."""
    digest = hashlib.blake2b(json.dumps(about, sort_keys=True, default=str).encode(), digest_size=KEY_SIZE)
    for name, array in sorted(arrays.items()):
        digest.update(name.encode() + str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class FeatureCache:
    """Features of images in the files of a folder. Several processes may use the folder at the same time.

    Each `save` writes one new file, so an interrupted run loses only the features since the last one. Files
    that are damaged are ignored and computed again.

    Args:
        folder: Folder of the files, one for each model and preprocessing; None to store nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rows: dict[bytes, Floats] = {}
        self._unsaved: list[bytes] = []
        for file in sorted(folder.glob("*.npz")) if folder is not None and folder.is_dir() else ():
            self._rows.update(_read(file))

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> Floats | None:
        """Returns the features of an image, [D]; None if they are unknown."""
        return self._rows.get(key)

    def add(self, keys: Sequence[bytes | None], features: Floats) -> None:
        """Adds the features of images, [N, D]. Images without a key are not stored."""
        for key, row in zip(keys, features, strict=True):
            if key is not None and key not in self._rows:
                self._rows[key] = row
                self._unsaved.append(key)

    def save(self) -> None:
        """Writes the features that were added since the last call.

        Raises:
            OSError: The folder can't be written.
        """
        if self._folder is None or not self._unsaved:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        keys = np.frombuffer(b"".join(self._unsaved), np.uint8).reshape(-1, KEY_SIZE)
        rows = np.stack([self._rows[key] for key in self._unsaved])
        name = hashlib.blake2b(keys.tobytes() + os.urandom(8), digest_size=8).hexdigest()
        with atomic_write(self._folder / f"{name}.npz") as stream:
            np.savez(stream, allow_pickle=False, keys=keys, features=rows)
        self._unsaved.clear()


def _read(file: Path) -> dict[bytes, Floats]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            keys = arrays["keys"]
            features = arrays["features"]
    except NUMPY_ERRORS:  # its features are computed again
        return {}
    fits = (
        keys.dtype == np.uint8
        and keys.ndim == 2
        and keys.shape[1] == KEY_SIZE
        and features.dtype == np.float32
        and features.ndim == 2
        and len(features) == len(keys)
        and bool(np.isfinite(features).all())
    )
    return dict(zip(map(bytes, keys), features, strict=True)) if fits else {}
