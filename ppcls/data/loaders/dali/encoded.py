"""How DALI gets encoded images: of files it is told the paths, of all else it is handed the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.backend import TensorCPU, TensorListCPU

from ppcls.data.index.files import FileIndex
from ppcls.data.index.read import Index
from ppcls.data.transforms.numpy_ops import DecodeError

Node = Any  # a DataNode of a graph under construction
Begun = Any  # what is being read


class Encoded(Protocol):
    """One output of the external source, and what the graph does with it.

    Attributes:
        ahead: Batches to begin before they are asked for.
    """

    ahead: int

    def begin(self, positions: NDArray[np.int64]) -> Begun:
        """Begins to read samples [N]."""

    def batch(self, begun: Begun) -> tuple[Any, Any]:
        """Returns what the external source gives for them, and what must live as long as DALI uses it."""

    def node(self, source: Any) -> Node:
        """Returns the node of the images' bytes, on the CPU; ``source`` gives what `batch` returned first."""


class FilePaths:
    """Files, which DALI reads in its own threads."""

    ahead = 0

    def __init__(self, index: FileIndex) -> None:
        self._index = index

    def begin(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns paths as one array: DALI takes it far faster than a list."""
        return self._index.path_block(positions)

    def batch(self, begun: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], None]:
        """Returns the paths, which DALI copies."""
        return begun, None

    def node(self, source: Any) -> Node:
        """Returns the node that reads the files."""
        # Mapped files are slower: their pages come and go under one lock for all threads.
        return fn.io.file.read(fn.external_source(source, batch=True), dont_use_mmap=True)


class ImageBytes:
    """Images that are not files of their own; threads read them ahead, for reading needs no Python lock.

    They are copied once, from the system's memory to ours. Mapped files would save that too, but end the
    process where a file is cut short or a network drive fails, and read a cold disk in small pieces.
    """

    ahead = 1

    def __init__(self, index: Index, pool: Executor, threads: int) -> None:
        self._index, self._pool, self._threads = index, pool, threads

    def begin(self, positions: NDArray[np.int64]) -> list[Future[list[NDArray[np.uint8]]]]:
        """Has each thread read a part: a task an image would cost more than its reading."""
        parts = np.array_split(positions, min(self._threads, len(positions)))
        return [self._pool.submit(self._read, part.tolist()) for part in parts]

    def batch(self, begun: Sequence[Future[list[NDArray[np.uint8]]]]) -> tuple[Any, list[NDArray[np.uint8]]]:
        """Returns the bytes of each image; none of one that can't be read, so that its decoder fails."""
        images = [image for part in begun for image in part.result()]
        tensors = [TensorCPU(image, "") for image in images]
        in_place = TensorListCPU(tensors, "", contiguous=False)  # type: ignore[call-overload]
        return in_place, images

    def node(self, source: Any) -> Node:
        """Returns the node of the bytes, used where they are."""
        return fn.external_source(source, batch=True, no_copy=True)

    def _read(self, positions: list[int]) -> list[NDArray[np.uint8]]:
        return [self._image(position) for position in positions]

    def _image(self, position: int) -> NDArray[np.uint8]:
        try:
            return np.frombuffer(self._index.read(position), np.uint8)
        except DecodeError:
            return np.zeros(0, np.uint8)  # `explain_failure` reads it again and says why


def encoded_images(index: Index, pool: Executor, threads: int) -> Encoded:
    """Returns how DALI gets the images of ``index``; a ``pool`` of ``threads`` reads what are no files."""
    return FilePaths(index) if isinstance(index, FileIndex) else ImageBytes(index, pool, threads)
