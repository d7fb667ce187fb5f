"""Scans class folders, and remembers the result until a folder changes."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.skipped import count_skipped
from ppcls.data.index.arrays.cache import ArrayCache, Arrays, Source
from ppcls.data.index.arrays.safe_folders import are_unchanged, describe_folders
from ppcls.files import is_image_name, is_system_folder

CACHED_IMAGES = 100_000  # number of images from which scans of folders are cached


class Scan(NamedTuple):
    """Images of class folders.

    Attributes:
        paths: [N] paths relative to the root, as bytes of fixed width.
        classes: [N] position of the class of each image.
        skipped: Number of other files, per file name extension.
        folders: [F] all folders that were searched.
    """

    paths: NDArray[np.bytes_]
    classes: NDArray[np.int64]
    skipped: Mapping[str, int]
    folders: NDArray[np.bytes_]


class _Folder(NamedTuple):
    """Images of one folder, whose path is relative to the root."""

    path: bytes
    position: int
    names: list[str]
    skipped: Counter[str]


def scan_classes(root: Path, classes: Mapping[str, Sequence[str]], extensions: tuple[str, ...]) -> Scan:
    """Lists the images of class folders. The list of many images is cached for all processes of the machine.

    Args:
        root: Folder of the class folders.
        classes: Names of the folders of each class.
        extensions: File name extensions of images, in lower case.

    Returns:
        The images. Without images, all arrays are empty.
    """
    place = os.path.realpath(os.fsencode(root))
    places = [*classes.values()]
    cache = ArrayCache(json.dumps(["scan", os.fsdecode(place), places, extensions]), str(root))
    source = Source(lambda: [], is_valid=lambda arrays: are_unchanged(place, arrays))
    arrays = cache.load(source)
    if arrays is None and _has_many(root, places, extensions):
        arrays = cache.get(source, lambda: _scan(root, places, extensions))
    if arrays is None:
        arrays = _scan(root, places, extensions)
    skipped = json.loads(bytes(arrays["skipped"]))
    return Scan(arrays["paths"], arrays["classes"], skipped, arrays["folders"])


def _has_many(root: Path, places: Sequence[Sequence[str]], extensions: tuple[str, ...]) -> bool:
    images = 0
    for folder in _walk(root, places, extensions):
        images += len(folder.names)
        if images >= CACHED_IMAGES:
            return True
    return False


def _scan(root: Path, places: Sequence[Sequence[str]], extensions: tuple[str, ...]) -> Arrays:
    now = time.time_ns()
    skipped = Counter[str]()
    pieces: list[NDArray[np.bytes_]] = []
    positions: list[int] = []
    folders: list[bytes] = []
    for folder in _walk(root, places, extensions):
        folders.append(folder.path)
        skipped.update(folder.skipped)
        if folder.names:
            pieces.append(np.array([folder.path + b"/" + os.fsencode(name) for name in folder.names]))
            positions.append(folder.position)
    sizes = [len(piece) for piece in pieces]
    return {
        # Folders whose state is read after they were searched could have changed in between. Their time of
        # change would not be settled then.
        **describe_folders(os.fsencode(root), folders, now),
        "paths": np.concatenate(pieces) if pieces else np.zeros(0, "S1"),
        "classes": np.repeat(np.array(positions, np.int64), sizes),
        "skipped": np.frombuffer(json.dumps(skipped).encode(), np.uint8),
    }


def _walk(root: Path, places: Sequence[Sequence[str]], extensions: tuple[str, ...]) -> Iterator[_Folder]:
    """Yields all folders of the classes, in the order of the classes and names."""
    for position, names in enumerate(places):
        for name in names:
            for folder, folders, files in os.walk(root / name):
                folders[:] = sorted(below for below in folders if not is_system_folder(below))
                images = sorted(file for file in files if is_image_name(file, extensions))
                few = len(images) < len(files)
                skipped = count_skipped(files, extensions) if few else Counter[str]()
                path = os.fsencode(Path(folder).relative_to(root))
                yield _Folder(path, position, images, skipped)
