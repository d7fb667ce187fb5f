"""Finds links and special files among the images of a list, and remembers the folders that have none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.paths import FolderScan, UnsafePaths, scan_folder, select_unsafe
from ppcls.data.index.arrays.cache import SETTLED, ArrayCache, Arrays, Source, State, file_state

_NO_STATE: State = [0, 0, 0, 0]


def find_unsafe_images(
    root: Path, source: Path, paths: NDArray[np.bytes_], folders: NDArray[np.bytes_], *, follow_links: bool
) -> UnsafePaths:
    """Finds special files, and links that lead out of a folder, without opening files.

    Each folder is scanned once per machine, and again after a file was added, removed or replaced. Folders
    with links are scanned by each process, because the target of a link can change without a trace.

    Args:
        root: Folder of the images. It may itself be a link.
        source: List of the images, which identifies them in the cache.
        paths: [N] paths relative to ``root``.
        folders: [F] different folders of the paths.
        follow_links: Whether to allow links that lead out of ``root``.
    """
    place = os.path.realpath(os.fsencode(root))
    key = json.dumps(["folders", os.fsdecode(place), os.path.realpath(source), follow_links])
    listed = folders.tolist()
    stored = ArrayCache(key, str(source)).get(
        Source(lambda: [], is_valid=lambda arrays: are_unchanged(place, arrays)),
        lambda: _scan(place, listed, follow_links=follow_links),
    )
    harmless = set(stored["folders"].tolist())
    scans = {
        folder: scan_folder(place, folder, follow_links=follow_links)
        for folder in listed
        if folder not in harmless
    }
    return select_unsafe(paths.tolist() if any(map(_is_unsafe, scans.values())) else (), scans)


def are_unchanged(root: bytes, arrays: Arrays) -> bool:
    """Returns whether the folders of a scan are unchanged.

    Args:
        root: Path of the folder of all folders.
        arrays: ``folders``: [F] paths relative to ``root``; ``states``: [F, 4]; ``scanned``: [1] time of the
            scan in ns.
    """
    states = arrays["states"]
    unchanged = np.array_equal(_folder_states(root, arrays["folders"].tolist()), states)
    # A change directly after the scan may not change the time of the folder.
    return unchanged and bool(states[:, 2:].max(initial=0) < int(arrays["scanned"][0]) - SETTLED)


def describe_folders(root: bytes, folders: Iterable[bytes], scanned: int) -> dict[str, NDArray[Any]]:
    """Returns the arrays that `are_unchanged` needs. Call it before the scan, at time ``scanned`` in ns."""
    listed = list(folders)
    return {
        "folders": np.array(listed, np.bytes_) if listed else np.zeros(0, "S1"),
        "states": _folder_states(root, listed),
        "scanned": np.array([scanned], np.int64),
    }


def _scan(root: bytes, folders: list[bytes], *, follow_links: bool) -> Arrays:
    """Returns the folders without links and special files, and their states."""
    arrays = describe_folders(root, folders, time.time_ns())
    scans = [scan_folder(root, folder, follow_links=follow_links) for folder in folders]
    harmless = np.array([not scan.has_links and not _is_unsafe(scan) for scan in scans], np.bool_)
    return {**arrays, "folders": arrays["folders"][harmless], "states": arrays["states"][harmless]}


def _folder_states(root: bytes, folders: Iterable[bytes]) -> NDArray[np.int64]:
    """Returns the state of each folder, [F, 4]; zeros if it is missing. See `file_state`."""
    return np.array([_state(root + b"/" + folder) for folder in folders], np.int64).reshape(-1, 4)


def _is_unsafe(scan: FolderScan) -> bool:
    return scan.links is None or bool(scan.links) or bool(scan.special)


def _state(path: bytes) -> State:
    try:
        return file_state(os.stat(path))  # noqa: PTH116 - paths of millions of images are bytes
    except OSError:
        return _NO_STATE
