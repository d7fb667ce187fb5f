"""Reads encoded images ahead of the pipeline that decodes them, and their shapes from their headers.

A pipeline of its own: DALI runs the CPU operators of one pipeline one after the other, so reading within
the decoding pipeline would take its time away from decoding. And what depends on an image's shape, such as
a random crop's window, is known before decoding begins.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn

from ppcls.config.sections.transform import Transform
from ppcls.data.index.files import FileIndex
from ppcls.data.index.read import Index
from ppcls.data.loaders.dali.encoded import Begun, encoded_images
from ppcls.data.loaders.dali.encoded import Encoded as EncodedImages
from ppcls.data.loaders.dali.headers import admit, peek
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.order import BatchOrder, Cursor, StepSamples
from ppcls.errors import UserError

_AHEAD = 2  # batches read before they are asked for


@dataclass(frozen=True)
class EncodedBatch:
    """One batch before decoding.

    Attributes:
        cursor: Its position.
        step: Its samples.
        files: [B] encoded images, a DALI tensor list on the CPU.
        sides: [B, 2] int64, heights and widths as the decoder will give them, turned by EXIF.
        memory: Owns the bytes of ``files`` where DALI does not.
    """

    cursor: Cursor
    step: StepSamples
    files: Any
    sides: NDArray[np.int64]
    memory: Any = None


class Reader(Protocol):
    """Gives the batches of an order, one after the other, from wherever `seek` put it."""

    under_way: deque[tuple[Cursor, StepSamples]]
    node: Any  # of the files' bytes in its own graph, once it has read

    def seek(self, cursor: Cursor) -> None:
        """Goes on from another position; what is under way still comes first."""

    def read(self) -> EncodedBatch:
        """Returns the next batch.

        Raises:
            RuntimeError: A file can't be read or is not an image; the reader is of no use any more.
            DecodeError: An image is refused by its header.
        """

    def close(self) -> None:
        """Ends its threads."""


def build_reader(
    index: Index,
    order: BatchOrder,
    settings: DaliSettings,
    decoder: Transform,
    pool: Executor,
    stride: int = 1,
) -> Reader:
    """Returns what reads the samples of ``index`` in ``order`` for a ``decoder``.

    Args:
        index: The samples.
        order: Which of them when.
        settings: Of DALI.
        decoder: What will decode.
        pool: Reads samples that are not files of their own.
        stride: Of as many batches it reads one.

    Raises:
        UserError: The decoder is to cache images that are not files of their own.
    """
    if not settings.caches:
        return DaliReader(encoded_images(index, pool, settings.threads), order, settings, decoder, stride)
    if not isinstance(index, FileIndex):
        raise UserError(f"{index.source}: the decoder's cache works on image files; set dali.cache_size: 0")
    return NamingReader(index, order, settings, decoder)


class DaliReader:
    """Reads whatever an index holds.

    Args:
        images: How DALI gets the samples.
        order: Which of them when.
        settings: Of DALI.
        decoder: What will decode: it knows headers, and what it refuses by them.
        stride: Of as many batches it reads one.
    """

    def __init__(
        self,
        images: EncodedImages,
        order: BatchOrder,
        settings: DaliSettings,
        decoder: Transform,
        stride: int = 1,
    ) -> None:
        self._images, self._order, self._decoder, self._stride = images, order, decoder, stride
        self._on_gpu = settings.decodes_on_gpu
        self._next = Cursor()
        self._begun: deque[tuple[Cursor, StepSamples, Begun]] = deque()
        self.under_way: deque[tuple[Cursor, StepSamples]] = deque()
        self._memory: deque[Any] = deque()  # of the batches under way
        self._pipeline = _pipeline(order, settings.threads)
        with self._pipeline:
            files = self.node = self._images.node(self._batch)
            self._pipeline.set_outputs(files, *peek(decoder, files))
        self._pipeline.build()

    def seek(self, cursor: Cursor) -> None:
        """Goes on from another position."""
        self._begun.clear()
        self._next = cursor

    def read(self) -> EncodedBatch:
        """Returns the next batch."""
        files, *peeked = self._pipeline.run()
        sides = admit(self._decoder, files, *peeked, on_gpu=self._on_gpu)
        return EncodedBatch(*self.under_way.popleft(), files, sides, self._memory.popleft())

    def close(self) -> None:
        """Ends its threads."""
        shut_down(self._pipeline)

    def _batch(self) -> Any:
        while len(self._begun) <= self._images.ahead:
            step = self._order.at(self._next)
            self._begun.append((self._next, step, self._images.begin(step.indices)))
            self._next = self._next.next(len(self._order), self._stride)
        cursor, step, begun = self._begun.popleft()
        self.under_way.append((cursor, step))
        given, memory = self._images.batch(begun)
        self._memory.append(memory)
        return given


class NamingReader:
    """Reads image files, and tells the decoder their names, by which its cache knows them.

    Only DALI's own reader hands names on, and it reads a list from its beginning to its end: so each epoch
    gets a list of its own, in our order.

    Args:
        index: The samples.
        order: Which of them when.
        settings: Of DALI.
        decoder: What will decode: it knows headers, and what it refuses by them.
    """

    def __init__(
        self, index: FileIndex, order: BatchOrder, settings: DaliSettings, decoder: Transform
    ) -> None:
        self._index, self._order, self._decoder = index, order, decoder
        self._threads, self._on_gpu = settings.threads, settings.decodes_on_gpu
        self._next = Cursor()
        self.under_way: deque[tuple[Cursor, StepSamples]] = deque()
        self._pipeline: Pipeline | None = None
        self.node: Any = None

    def seek(self, cursor: Cursor) -> None:
        """Goes on from another position."""
        self.close()
        self._next = cursor

    def read(self) -> EncodedBatch:
        """Returns the next batch."""
        cursor, step = self._next, self._order.at(self._next)
        self.under_way.append((cursor, step))
        pipeline = self._pipeline or self._list(cursor)
        files, *peeked = pipeline.run()
        sides = admit(self._decoder, files, *peeked, on_gpu=self._on_gpu)
        self.under_way.popleft()
        self._next = cursor.next(len(self._order))
        if self._next.epoch != cursor.epoch:
            self.close()
        return EncodedBatch(cursor, step, files, sides)

    def close(self) -> None:
        """Ends its threads."""
        if self._pipeline is not None:
            shut_down(self._pipeline)
        self._pipeline = None

    def _list(self, cursor: Cursor) -> Pipeline:
        """Builds the pipeline that reads from ``cursor`` to the end of its epoch."""
        steps = (self._order.at(Cursor(cursor.epoch, step)) for step in range(cursor.step, len(self._order)))
        names = [os.fsdecode(self._index.path(position)) for step in steps for position in step.indices]
        self._pipeline = _pipeline(self._order, self._threads)
        with self._pipeline:
            files, _ = fn.readers.file(files=names)
            self.node = files
            self._pipeline.set_outputs(files, *peek(self._decoder, files))
        self._pipeline.build()
        return self._pipeline


def shut_down(pipeline: Pipeline) -> None:
    """Ends a pipeline's threads, as its end would.

    Left to the garbage collector, that may run in one of these threads, which can't wait for itself.
    """
    pipeline._shutdown()


def _pipeline(order: BatchOrder, threads: int) -> Pipeline:
    return Pipeline(
        batch_size=order.batch_size,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=_AHEAD,
        exec_dynamic=True,
    )
