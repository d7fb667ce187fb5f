"""Defines the interface of datasets: encoded images and labels by position."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_HASHED_NAMES = 1000  # number of names, spread over the samples, that identify a data set


class Index(Protocol):
    """Provides the samples of one split by position.

    Arrays have items of fixed width, so forked workers share their memory. Several threads and forked
    processes may call `read` at the same time.
    """

    @property
    def labels(self) -> NDArray[Any]:
        """Labels: [N] int64, 0..class_num - 1; or [N, class_num] float32, 0 or 1 for each class."""

    @property
    def source(self) -> Path:
        """List file, folder or record file of the samples, for messages."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def name(self, position: int) -> str:
        """Returns the path of the file that contains a sample, for messages."""

    def where(self, position: int) -> str:
        """Returns the location of a sample in its list or file, for messages."""

    def read(self, position: int) -> bytes | memoryview:
        """Returns the encoded image of a sample.

        Raises:
            ppcls.data.images.header.DecodeError: The image is missing, empty or damaged, or can't be read.
        """


def sample_name(index: Index, position: int) -> str:
    """Returns the path of the file that contains a sample, and its location if the file has several."""
    name = index.name(position)
    return name if hasattr(index, "path") else f"{name}, {index.where(position)}"


def find_samples(index: Index, places: Collection[tuple[str, str]]) -> list[int]:
    """Returns the positions of samples in ascending order.

    A sample that is a file is found by its name. Other samples have the name of their container, and are
    found by name and location.

    Args:
        index: The samples.
        places: Results of `Index.name` and `Index.where`.
    """
    find = getattr(index, "find", None)
    if find is not None:  # without asking for the names of all samples
        positions: list[int] = find(places)
        return positions
    return [at for at in range(len(index)) if (index.name(at), index.where(at)) in places]


def cameras_of(index: Index) -> NDArray[np.int64] | None:
    """Returns the number of the camera of each sample, [N] int64; None if the dataset has no cameras."""
    cameras: NDArray[np.int64] | None = getattr(index, "cameras", None)
    return cameras


def positive_rates(index: Index) -> NDArray[np.float32] | None:
    """Returns the share of images that have each class, [class_num]; None if images have a single label."""
    return index.labels.mean(axis=0, dtype=np.float64).astype(np.float32) if index.labels.ndim == 2 else None


def describe_index(index: Index) -> str:
    """Returns a text that identifies a dataset: its size and a hash of all labels and up to 1,000 names.

    The names are relative to the folder of the images, which may move to another place. For containers, they
    are those of the files.
    """
    root = getattr(index, "root", None)

    def name(position: int) -> str:
        full = index.name(position)
        return Path(full).name if root is None else os.path.relpath(full, root)

    return _describe(index, name)


def is_described(text: str, index: Index) -> bool:
    """Returns whether a text identifies a dataset. Older checkpoints have a hash of the full names."""
    return text in (describe_index(index), _describe(index, index.name))


def _describe(index: Index, name: Callable[[int], str]) -> str:
    # Without a copy of the labels: every rank does this.
    labels = np.ascontiguousarray(index.labels).reshape(-1).view(np.uint8)
    digest = hashlib.blake2b(labels.data, digest_size=6)
    for position in np.linspace(0, len(index) - 1, min(len(index), _HASHED_NAMES)).astype(int).tolist():
        digest.update(name(position).encode("utf-8", "surrogateescape") + b"\0")
    return f"{len(index)} samples ({digest.hexdigest()})"
