"""Writes a small CIFAR-10 with random images, in the file format of Python 2."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

FOLDER = "cifar-10-batches-py"
_NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def written_by_python_2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A pickle of protocol 2 with byte strings, as the published files have it."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\0K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    shape = b"".join(b"J" + struct.pack("<i", side) for side in pixels.shape)
    state = b"(K\x01(" + shape + b"t" + dtype + b"\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes()
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + state + b"tbU\x06labels" + numbers + b"u."


def images(count: int, seed: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), [number % 10 for number in range(count)]


def write_cifar(parent: Path) -> Path:
    """Writes 20 images per file, two of each class, and returns their folder."""
    folder = parent / FOLDER
    folder.mkdir()
    for seed, name in enumerate(_NAMES):
        (folder / name).write_bytes(written_by_python_2(*images(20, seed)))
    return folder
