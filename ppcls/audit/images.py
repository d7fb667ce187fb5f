"""Reads what the audit needs from each picture: a hash of its content, and a small grey copy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.base import ImageState
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs import DecodeImage

Floats = NDArray[np.float32]
SIDE = 16  # of the grey copies in pixels
_CHUNK = 256


@dataclass(frozen=True)
class Pictures:
    """The pictures of a data set, in one or several splits.

    Attributes:
        files: Path of each picture, N.
        labels: Label of each picture, [N] int64.
        classes: Names of the classes, in the order of their labels.
        splits: Name of the split of each picture, such as ``train`` or ``val``, N.
        hashes: Hash of the content of each file, N; None for a picture that can't be read.
        copies: Grey copies with mean 0 and length 1, [N, SIDE * SIDE] float32; NaN for a picture that can't
            be read, and 0 for one without contrast.
    """

    files: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: list[str]
    hashes: list[bytes | None]
    copies: Floats

    def __len__(self) -> int:
        return len(self.files)

    def describe(self, position: int) -> str:
        """Returns the class and the split of a picture."""
        return f"{self.classes[int(self.labels[position])]}, {self.splits[position]}"


def read_copies(
    index: Index, threads: int, after_image: Callable[[int], None] = lambda _images: None
) -> tuple[list[bytes | None], Floats]:
    """Returns the hashes and the grey copies of all pictures; see `Pictures`.

    Args:
        index: The pictures.
        threads: Number of threads.
        after_image: Function that is called with the number of finished pictures. It may raise an exception
            to stop.
    """
    hashes: list[bytes | None] = []
    copies = np.full((len(index), SIDE * SIDE), np.nan, np.float32)
    for position, (digest, copy) in enumerate(_map(index, threads)):
        hashes.append(digest)
        if copy is not None:
            copies[position] = copy
        after_image(1)
    return hashes, copies


def read_pixels(index: Index, position: int) -> NDArray[np.uint8] | None:
    """Returns the pixels of a picture, [H, W, 3] uint8; None if it can't be read."""
    decoder = DecodeImage()
    try:
        pixels: NDArray[Any] = apply(decoder, index.read(position), ())
    except DecodeError:
        return None
    rgb = decoder.after(ImageState()).rgb
    return pixels if rgb else np.ascontiguousarray(pixels[:, :, ::-1])


def _map(index: Index, threads: int) -> Iterator[tuple[bytes | None, Floats | None]]:
    def read(position: int) -> tuple[bytes | None, Floats | None]:
        try:
            content = index.read(position)
        except DecodeError:
            return None, None
        digest = hashlib.blake2b(content, digest_size=16).digest()
        pixels = read_pixels(index, position)
        return (digest, None) if pixels is None else (digest, _shrink(pixels))

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(index), _CHUNK):
            yield from pool.map(read, range(start, min(start + _CHUNK, len(index))))


def _shrink(pixels: NDArray[np.uint8]) -> Floats:
    """Returns the grey copy of a picture, [SIDE * SIDE] float32, with mean 0 and length 1."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32).ravel()
    small -= small.mean()
    length = float(np.linalg.norm(small))
    # A picture of one colour resembles every other one of the kind; only equal content counts there.
    result: Floats = small / length if length > SIDE else np.zeros_like(small)
    return result
