"""Reads lists and images that are objects of a storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.arrays.path_hashes import find_paths
from ppcls.data.stored.roots import naming, stored_objects
from ppcls.errors import DecodeError, UserError
from ppcls.files.object_cache import GIB, ObjectCache, data_folder
from ppcls.files.objects import ObjectInfo
from ppcls.files.urls import UrlPath, is_url

if TYPE_CHECKING:
    from ppcls.data.index.files import FileIndex

_AHEAD = 2048  # images that are downloaded ahead


class StoredFiles:
    """Implements `ppcls.data.index.protocol.Index` for images that are objects.

    Args:
        files: Names and labels of the images. ``paths`` are those of the objects.
        url: Address below which the objects are.
        cache: Copies of the objects below this address, or of one above it.
        versions: [N] bytes, versions of the objects; None if they are unknown.

    Attributes:
        labels: See `FileIndex`.
        source: See `FileIndex`.
        root: Address below which the images are.
        skipped: See `FileIndex`.
        cameras: See `FileIndex`.
        ahead: Number of images to download ahead.
    """

    ahead = _AHEAD

    def __init__(
        self, files: FileIndex, url: str, cache: ObjectCache, versions: NDArray[np.bytes_] | None = None
    ) -> None:
        self._files = files
        self._cache = cache
        self._prefix = url[len(cache.url) + 1 :]
        self._versions = versions
        self.labels: NDArray[Any] = files.labels
        self.source = files.source
        self.root = UrlPath(url)
        self.skipped = files.skipped
        self.cameras = files.cameras

    def __len__(self) -> int:
        return len(self._files)

    def name(self, position: int) -> str:
        """Returns the address of an image."""
        return f"{self.root}/{os.fsdecode(bytes(self._files.paths[position]))}"

    def where(self, position: int) -> str:
        """Returns the location of an image in its list. See `FileIndex.where`."""
        return self._files.where(position)

    def find(self, places: Collection[tuple[str, str]]) -> list[int]:
        """Returns the positions of images. See `ppcls.data.index.protocol.find_samples`."""
        start = len(str(self.root)) + 1
        return find_paths(self._files.paths, {os.fsencode(name[start:]) for name, _ in places})

    def read(self, position: int) -> bytes:
        """Returns an encoded image.

        Raises:
            DecodeError: There is no such object, or it is empty.
            StorageError: The storage can't be read.
        """
        name, version = self._object(position)
        try:
            data = self._cache.read(name, version)
        except FileNotFoundError:
            raise DecodeError("no such object") from None
        if not data:
            raise DecodeError("the object is empty")
        return data

    def objects(self, positions: NDArray[np.int64]) -> Iterable[tuple[str, ObjectInfo]]:
        """Returns the names of the objects of images, with unknown sizes."""
        for position in positions.tolist():
            name, version = self._object(position)
            yield name, ObjectInfo(-1, version)

    def fetch(self, name: str, info: ObjectInfo) -> None:
        """Downloads an object. See `ObjectCache.fetch`."""
        self._cache.fetch(name, info)

    def _object(self, position: int) -> tuple[str, str]:
        name = os.fsdecode(bytes(self._files.paths[position]))
        version = "" if self._versions is None else self._versions[position].decode()
        return f"{self._prefix}/{name}" if self._prefix else name, version


def read_stored_list(
    image_root: str, listing: str, read: Callable[[Path, Path], FileIndex], storage_cache: float
) -> FileIndex | StoredFiles:
    """Reads a list of images, if the list or the images are in object storage.

    Args:
        image_root: Folder or address of the images.
        listing: Path or address of the list.
        read: Function that reads a list, from the folder of the images and the path of the list.
        storage_cache: Largest size of the copies of images, in GiB.

    Raises:
        UserError: The list does not exist or is invalid.
        StorageError: The storage can't be read.
    """
    path = fetch_file(listing) if is_url(listing) else Path(listing)
    root = Path(image_root)
    if is_url(image_root):
        root = data_folder(image_root) / "empty"
        root.mkdir(parents=True, exist_ok=True)
    with naming(listing, path), naming(image_root, root):
        files = read(root, path)
    if is_url(listing):
        files = replace(files, source=UrlPath(listing))
    if not is_url(image_root):
        return files
    cache = ObjectCache(image_root, int(storage_cache * GIB))
    return StoredFiles(files, cache.url, cache)


def read_stored_folder(image_root: str, tree: Path, files: FileIndex, storage_cache: float) -> StoredFiles:
    """Returns the images of class folders in object storage.

    Args:
        image_root: Address of the folder.
        tree: Local folder with an empty file for each object; see `data_root`.
        files: Images that were found in ``tree``.
        storage_cache: Largest size of the copies of images, in GiB.

    Raises:
        StorageError: The storage can't be reached.
    """
    cache = ObjectCache(image_root, int(storage_cache * GIB))
    inside = os.path.relpath(files.root, tree)
    prefix = "" if inside == os.curdir else f"{inside}/"
    infos = stored_objects(image_root)
    versions = [infos[prefix + os.fsdecode(bytes(path))].version.encode() for path in files.paths]
    url = f"{cache.url}/{prefix}".rstrip("/")
    files = replace(files, source=UrlPath(url))
    return StoredFiles(files, url, cache, np.array(versions))


def fetch_file(url: str) -> Path:
    """Returns the path of the copy of an object, which is downloaded unless there is one of this version.

    Raises:
        UserError: There is no such object.
        StorageError: The storage can't be read.
    """
    cache = ObjectCache(url, GIB)  # of this object only, in all its versions
    try:
        return cache.fetch("", cache.objects.info(""))
    except FileNotFoundError:
        cache.objects.check_bucket()
        raise UserError(f"{url}: no such object") from None
