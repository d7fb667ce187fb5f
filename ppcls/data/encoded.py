"""How DALI gets encoded images: of files it is told the paths, of all else it is handed the bytes."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn

from ppcls.data.file_index import FileIndex
from ppcls.data.index import Index
from ppcls.data.numpy_ops import DecodeError

Node = Any  # a DataNode of a graph under construction


class Encoded(Protocol):
    """One output of the external source, and what the graph does with it."""

    def batch(self, positions: NDArray[np.int64]) -> Any:
        """Returns what the external source gives for samples [N]."""

    def node(self, output: Node) -> Node:
        """Returns the node of the images' bytes, on the CPU, given that of the source's output."""


class FilePaths:
    """Files, which DALI reads in its own threads."""

    def __init__(self, index: FileIndex) -> None:
        self._index = index

    def batch(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns paths as one array: DALI takes it far faster than a list."""
        return self._index.path_block(positions)

    def node(self, output: Node) -> Node:
        """Returns the node that reads the files."""
        # Mapped files are slower: their pages come and go under one lock for all threads.
        return fn.io.file.read(output, dont_use_mmap=True)


class ImageBytes:
    """Images that are not files of their own; threads read a batch, for reading needs no Python lock."""

    def __init__(self, index: Index, pool: Executor) -> None:
        self._index, self._pool = index, pool

    def batch(self, positions: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Returns the bytes of each image; none of one that can't be read, so that its decoder fails."""
        return list(self._pool.map(self._read, positions.tolist()))

    def node(self, output: Node) -> Node:
        """Returns ``output``: it is the bytes."""
        return output

    def _read(self, position: int) -> NDArray[np.uint8]:
        try:
            return np.frombuffer(self._index.read(position), np.uint8)
        except DecodeError:
            return np.zeros(0, np.uint8)  # `explain_failure` reads it again and says why


def encoded_images(index: Index, pool: Executor) -> Encoded:
    """Returns how DALI gets the images of ``index``; ``pool`` reads those that are not files."""
    return FilePaths(index) if isinstance(index, FileIndex) else ImageBytes(index, pool)
