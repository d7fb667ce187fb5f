"""A data set whose images are decoded once per machine."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.image_cache.decoding import Decode, estimate_pixels, state_after
from ppcls.data.image_cache.place import (
    CacheKind,
    caches_folder,
    filling,
    free_bytes,
    remove_unused,
    use,
    used_alone,
)
from ppcls.data.image_cache.store import CachedImage, ImageStore, entry_bytes
from ppcls.data.images.header import DecodeError
from ppcls.data.index.arrays.path_hashes import find_repeated
from ppcls.data.index.files import FileIndex
from ppcls.data.transforms.numpy_ops.chain import run
from ppcls.data.transforms.specs import Op
from ppcls.errors import UserError, counted
from ppcls.files import print_error

_FORMAT = 2
_CHUNK = 256  # maximum number of images that are decoded and stored together
_CHUNK_BYTES = 1 << 30  # maximum size of their pixels by the estimate; two or three chunks are in memory
_SAMPLE = 500  # images from whose headers the size of the cache is estimated
_MARGIN = 1.05  # the estimate may be too small
_REPORT = 30.0  # seconds between two lines about the progress
_CHECKED = "checked"  # file whose time is that of the last comparison with the image files
_NO_DRAWS = np.zeros(0, np.float32)


class CachedIndex:
    """Implements `ppcls.data.index.protocol.Index` for decoded images, which are read as ``.npy`` files.

    Args:
        original: The image files.
        ops: Chain that was run before the images were stored.
        store: The stored images.
        stored_at: [N] int64, position in ``store`` of the image of each sample.
    """

    def __init__(
        self, original: FileIndex, ops: Sequence[Op], store: ImageStore, stored_at: NDArray[np.int64]
    ) -> None:
        self.original = original
        self._ops = ops
        self._store = store
        self._stored_at = stored_at

    @property
    def labels(self) -> NDArray[Any]:
        """Labels. See `ppcls.data.index.protocol.Index`."""
        return self.original.labels

    @property
    def source(self) -> Path:
        """List file or folder of the samples, for messages."""
        return self.original.source

    def __len__(self) -> int:
        return len(self.original)

    def name(self, position: int) -> str:
        """Returns the path of the image file, for messages."""
        return self.original.name(position)

    def where(self, position: int) -> str:
        """Returns the location of a sample in its list, for messages."""
        return self.original.where(position)

    def read(self, position: int) -> memoryview:
        """Returns a decoded image as the content of an ``.npy`` file.

        Raises:
            DecodeError: The image file is bad.
        """
        if (stored := self._store.read(int(self._stored_at[position]))) is not None:
            return stored
        try:
            run(self._ops, self.original.read(position), _NO_DRAWS)
        except ValueError as error:
            raise DecodeError(str(error)) from None
        raise DecodeError("the decoder of the cache rejected this image; save it again as a JPEG or PNG")


class ImageCache:
    """The cache of a data set.

    Args:
        kind: Where to store the images.
        key: Key of the config that enables the cache, for messages.
        index: The image files.
        ops: Chain to run before the images are stored.
        decoder: Text that names the decoder with its version and options.
    """

    def __init__(self, kind: CacheKind, key: str, index: FileIndex, ops: Sequence[Op], decoder: str) -> None:
        self._kind = kind
        self._key = key
        self._index = index
        self._ops = ops
        self._folder = caches_folder(kind) / self._token(decoder)
        self._stored_at = _first_positions(index.paths)

    def open(self, decode: Decode, wait: Callable[[], None]) -> CachedIndex:
        """Returns the cached data set. One process of the machine decodes the images that are missing.

        Args:
            decode: Decodes images.
            wait: Function to call repeatedly while images are decoded.

        Raises:
            UserError: The images do not fit into the memory or on the disk, or the folder can't be used.
        """
        try:
            store = self._open(decode, wait)
        except OSError as error:  # of files of the cache, because bad images are DecodeErrors
            raise self._unusable(error) from None
        return CachedIndex(self._index, self._ops, store, self._stored_at)

    def _open(self, decode: Decode, wait: Callable[[], None]) -> ImageStore:
        start = time.time_ns()
        lock = use(self._folder, self._kind)
        with filling(self._folder, wait) as waited:
            store = ImageStore(self._folder, len(self._index))
            if not (waited and self._checked_since(start)):
                positions = np.unique(self._stored_at)
                states = np.array([_file_state(self._index.path(at)) for at in positions.tolist()], np.int64)
                changed = (states != store.states[positions]).any(axis=1)
                if store.mostly_replaced(positions[changed]):
                    with used_alone(lock) as alone:
                        if alone:
                            store.clear()
                            changed[:] = True
                if changed.any():
                    self._fill(store, positions[changed], states[changed], decode, wait)
                (self._folder / _CHECKED).touch()
            store.map()
        return store

    def _token(self, decoder: str) -> str:
        """Returns the name of the folder, which depends on the files, the transforms and the decoder."""
        chain = [[op.spec.kind, op.spec.model_dump(mode="json")] for op in self._ops]
        text = json.dumps([_FORMAT, os.fsdecode(os.path.realpath(self._index.root)), chain, decoder])
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12)
        digest.update(np.ascontiguousarray(self._index.paths).view(np.uint8).data)
        return digest.hexdigest()

    def _checked_since(self, start: int) -> bool:
        """Returns whether another process has compared the cache with the files since a time in ns."""
        try:
            return (self._folder / _CHECKED).stat().st_mtime_ns >= start
        except FileNotFoundError:
            return False

    def _fill(
        self,
        store: ImageStore,
        missing: NDArray[np.int64],
        states: NDArray[np.int64],
        decode: Decode,
        wait: Callable[[], None],
    ) -> None:
        """Decodes images and stores them.

        Args:
            store: The store.
            missing: [M], positions of the images.
            states: [M, 2], states of their files. The next start decodes files that change later.
            decode: See `open`.
            wait: See `open`.
        """
        need = self._estimate(missing)
        if self._kind == "memory" and need > free_bytes(self._folder, self._kind):
            remove_unused(self._folder)
        self._check_room(need, len(missing))
        started = shown = time.monotonic()
        stored = 0
        print_error(
            f"{self._key}: decoding {counted(len(missing), 'image')}, which need {_describe_size(need)}, "
            f"into {self._folder}"
        )
        size = max(1, min(_CHUNK, _CHUNK_BYTES * len(missing) // max(1, need)))
        begins = range(0, len(missing), size)
        chunks = [missing[begin : begin + size].tolist() for begin in begins]
        with closing(decode(chunks)) as results:
            for begin, positions, decoded in zip(begins, chunks, results, strict=True):
                wait()
                known = [tuple(state) for state in states[begin : begin + size].tolist()]
                # Bad images are tried again at the next start, because the disk may have failed for a moment.
                images = [
                    CachedImage(at, pixels, state)
                    for at, pixels, state in zip(positions, decoded, known, strict=True)
                    if pixels is not None
                ]
                stored += len(images)
                try:
                    store.append(images)
                    store.forget(set(positions).difference(image.position for image in images))
                except OSError as error:
                    raise self._full(f"{error.strerror}", len(missing) - begin) from None
                if time.monotonic() - shown > _REPORT:
                    shown = time.monotonic()
                    print_error(
                        f"{self._key}: {begin + len(positions):,} of "
                        f"{counted(len(missing), 'image is', 'images are')} decoded"
                    )
        bad = len(missing) - stored
        note = f"; {counted(bad, 'image is', 'images are')} bad" if bad else ""
        print_error(
            f"{self._key}: {counted(stored, 'image is', 'images are')} decoded in "
            f"{time.monotonic() - started:.1f} s; the cache has {_describe_size(store.size)}{note}"
        )

    def _estimate(self, missing: NDArray[np.int64]) -> int:
        """Returns the number of bytes of missing images, from the headers of up to 500 of them."""
        count = min(len(missing), _SAMPLE)
        chosen = missing[np.linspace(0, len(missing) - 1, count).astype(np.int64)].tolist()
        state = state_after(self._ops)
        sizes = [
            entry_bytes(estimate_pixels(self._index, self._ops, at), state.channels, state.dtype)
            for at in chosen
        ]
        mean = sum(sizes) / count
        return int(len(missing) * mean * (1.0 if count == len(missing) else _MARGIN))

    def _check_room(self, need: int, count: int) -> None:
        """Raises `UserError` if the images do not fit."""
        free = free_bytes(self._folder, self._kind)
        if need > free:
            text = f"they need {_describe_size(need)}, but {_describe_size(free)} are free"
            raise self._full(text, count)

    def _unusable(self, error: OSError) -> UserError:
        other = "set it to disk" if self._kind == "memory" else "set PPCLS_HOME to another folder"
        return UserError(
            f"{self._key}: can't use the cache in {self._folder}: {error.strerror or error}; {other}, or "
            "remove this key"
        )

    def _full(self, reason: str, count: int) -> UserError:
        other = "set it to disk" if self._kind == "memory" else "set PPCLS_HOME to a larger disk"
        return UserError(
            f"{self._key}: can't store {counted(count, 'decoded image')} in {self._folder}: {reason}; "
            f"{other}, shrink the images with `ppcls dataset resize`, or remove this key"
        )


def _first_positions(paths: NDArray[np.bytes_]) -> NDArray[np.int64]:
    """Returns for each path the position where it is listed first, [N]."""
    positions = np.arange(len(paths))
    repeated = find_repeated(paths)
    _, first, number = np.unique(paths[repeated], return_index=True, return_inverse=True)
    positions[repeated] = repeated[first[number]]
    return positions


def _describe_size(count: int) -> str:
    """Returns a number of bytes in GB, or in MB if it is less than 1 GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.2f} MB"


def _file_state(path: bytes) -> tuple[int, int]:
    """Returns time of the last change in ns and size of a file; zeros if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - bytes
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
