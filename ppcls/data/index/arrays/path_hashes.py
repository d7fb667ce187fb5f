"""Finds equal paths among millions of paths, with 8 bytes of memory per path."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_PIECE = 1 << 17  # number of paths that are hashed together
# One byte each. Most hashes fall into empty buckets, and only the others need the slow comparison.
_BUCKETS = 1 << 24

Hashes = NDArray[np.uint64]


def find_repeated(paths: NDArray[np.bytes_], root: bytes | None = None) -> NDArray[np.int64]:
    """Returns the positions of all paths that occur more than once, [M], in ascending order.

    Some other positions may be among them, because hashes are compared.

    Args:
        paths: [N] paths.
        root: Folder of the paths, which are compared in their normal form; None to compare them as they are.
    """
    hashes = hash_paths(paths, root)
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.flatnonzero(_are_among(hashes, repeated)) if len(repeated) else np.zeros(0, np.int64)


def find_common(
    first: tuple[bytes, NDArray[np.bytes_]], second: tuple[bytes, NDArray[np.bytes_]]
) -> list[bytes]:
    """Returns the sorted full paths that are in both of two lists.

    Args:
        first: Real path of the folder, and paths relative to it.
        second: The same of the other list.
    """
    (root, paths), (other_root, other_paths) = sorted((first, second), key=lambda item: len(item[1]))
    hashes = hash_paths(paths, root)
    other_hashes = hash_paths(other_paths, other_root)
    others = np.flatnonzero(_are_among(other_hashes, hashes))
    if not len(others):
        return []
    chosen = np.flatnonzero(_are_among(hashes, other_hashes[others]))
    return sorted(
        {full_path(root, path) for path in paths[chosen].tolist()}
        & {full_path(other_root, path) for path in other_paths[others].tolist()}
    )


def find_paths(paths: NDArray[np.bytes_], searched: Collection[bytes]) -> list[int]:
    """Returns the positions of all paths that are among the searched ones, in ascending order."""
    width = paths.dtype.itemsize
    possible = [path for path in searched if len(path) <= width]
    if not possible:
        return []
    among = _are_among(hash_paths(paths), hash_paths(np.array(possible)))
    return [at for at in np.flatnonzero(among).tolist() if bytes(paths[at]) in searched]


def full_path(root: bytes, path: bytes) -> bytes:
    """Returns the normal form of a path below a folder."""
    # Most paths are normal already, and normpath would need seconds for a million paths.
    full = root + b"/" + path
    return os.path.normpath(full) if b"./" in path or b"//" in path else full


def hash_paths(paths: NDArray[np.bytes_], root: bytes | None = None) -> Hashes:
    """Returns the hash of each path, [N]. It does not depend on the width of the array.

    Args:
        paths: [N] paths.
        root: Folder of the paths, whose full paths are hashed in their normal form; None for the paths
            themselves.
    """
    hashes = np.zeros(len(paths), np.uint64)
    for start in range(0, len(paths), _PIECE):
        piece = paths[start : start + _PIECE]
        if root is not None:
            piece = _full_paths(piece, root)
        # In pieces, because hashing needs several times the memory of the paths.
        hashes[start : start + _PIECE] = _hash(piece)
    return hashes


def _full_paths(paths: NDArray[np.bytes_], root: bytes) -> NDArray[np.bytes_]:
    prefix = np.frombuffer(root + b"/", np.uint8)
    text = np.ascontiguousarray(paths).view(np.uint8).reshape(len(paths), -1)
    full = np.zeros((len(paths), len(prefix) + text.shape[1]), np.uint8)
    full[:, : len(prefix)] = prefix
    full[:, len(prefix) :] = text
    result = full.view(f"S{full.shape[1]}").reshape(len(paths))
    slash = text[:, 1:] == ord("/")
    unusual = (slash & ((text[:, :-1] == ord(".")) | (text[:, :-1] == ord("/")))).any(axis=1)
    for at in np.flatnonzero(unusual).tolist():
        result[at] = full_path(root, bytes(paths[at]))
    return result


def _hash(paths: NDArray[np.bytes_]) -> Hashes:
    width = paths.dtype.itemsize
    text = np.zeros((len(paths), -(-width // 8) * 8), np.uint8)
    text[:, :width] = np.ascontiguousarray(paths).view(np.uint8).reshape(len(paths), width)
    words = text.view(np.uint64)
    # Zeros at the end do not count. Chance collisions only cost time.
    factors = np.random.default_rng(0).integers(0, 1 << 64, words.shape[1], np.uint64) | np.uint64(1)
    hashes = np.zeros(len(paths), np.uint64)
    for word, factor in zip(words.T, factors, strict=True):
        mixed = word * factor
        hashes += mixed ^ (mixed >> np.uint64(29))
    return hashes * np.uint64(0x9E3779B97F4A7C15)


def _are_among(hashes: Hashes, values: Hashes) -> NDArray[np.bool_]:
    """Returns whether each hash is one of the values, [N]."""
    shift = np.uint64(64 - (_BUCKETS.bit_length() - 1))
    buckets = np.zeros(_BUCKETS, np.bool_)
    buckets[values >> shift] = True
    among: NDArray[np.bool_] = buckets[hashes >> shift]
    candidates = np.flatnonzero(among)
    among[candidates] = np.isin(hashes[candidates], values)
    return among
