"""Reads encoded images ahead of the pipeline that decodes them, and their sizes from their headers.

The reader has a pipeline of its own, because DALI runs the CPU operators of a pipeline one after the other:
within the decoding pipeline, reading would take time from decoding. And decisions that depend on an image's
size, such as the window of a random crop, are then known before decoding begins.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn
from nvidia.dali.backend import TensorCPU, TensorListCPU

from ppcls.config.sections.transform import Transform
from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.dali.headers import Node, admit, peek
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.order import BatchOrder, Cursor, StepSamples
from ppcls.errors import UserError

_PREFETCH = 2  # batches


@dataclass(frozen=True)
class EncodedBatch:
    """One batch before decoding.

    Attributes:
        cursor: Its position in the run.
        step: Its samples.
        files: [B] encoded images, a DALI tensor list on the CPU.
        sides: [B, 2] int64, heights and widths of the decoded images, after the EXIF orientation.
        memory: Owner of the bytes of ``files``, if it is not DALI.
    """

    cursor: Cursor
    step: StepSamples
    files: Any
    sides: NDArray[np.int64]
    memory: Any = None


def build_reader(
    index: Index,
    order: BatchOrder,
    settings: DaliSettings,
    decoder: Transform,
    pool: Executor,
    stride: int = 1,
) -> Reader:
    """Returns a reader of the samples of ``index`` in ``order``.

    Args:
        decoder: The transform that decodes; it determines which headers are rejected.
        pool: Threads that read samples other than files.
        stride: The reader reads every stride-th batch.

    Raises:
        UserError: The decoder's cache is enabled, but the samples are not files.
    """
    if settings.caches:
        if not isinstance(index, FileIndex):
            raise UserError(
                f"{index.source}: the decoder's cache works on image files; set dali.cache_size: 0"
            )
        return CacheReader(index, order, settings, decoder)
    if isinstance(index, FileIndex):
        return FileReader(index, order, settings, decoder, stride)
    return MemoryReader(index, order, settings, decoder, stride, pool)


class Reader:
    """Base of readers: reads the batches of an order one after the other, from the position that `seek` set.

    Attributes:
        under_way: Position and samples of the batches that are requested and not yet returned.
        node: Node of the encoded images in the reader's own graph; None before it is built.
    """

    def __init__(self, index: Any, order: BatchOrder, settings: DaliSettings, decoder: Transform) -> None:
        self._index, self._order, self._decoder = index, order, decoder
        self._threads, self._on_gpu = settings.threads, settings.decodes_on_gpu
        self._next = Cursor()
        self._pipeline: Pipeline | None = None
        self.under_way: deque[tuple[Cursor, StepSamples]] = deque()
        self.node: Node = None

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position; batches under way still come first."""
        raise NotImplementedError

    def read(self) -> EncodedBatch:
        """Returns the next batch.

        Raises:
            RuntimeError: A file can't be read or is not an image; the reader can no longer be used.
            DecodeError: An image is rejected by its header.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends its threads."""
        if self._pipeline is not None:
            shut_down(self._pipeline)
        self._pipeline = None

    def _build(self, add_encoded: Callable[[], Node]) -> None:
        """Builds the pipeline; ``add_encoded`` adds the node of the encoded images to its graph."""
        self._pipeline = Pipeline(
            batch_size=self._order.batch_size,
            num_threads=self._threads,
            device_id=None,
            prefetch_queue_depth=_PREFETCH,
            exec_dynamic=True,
        )
        with self._pipeline:
            self.node = add_encoded()
            self._pipeline.set_outputs(self.node, *peek(self._decoder, self.node))
        self._pipeline.build()

    def _run(self) -> tuple[Any, NDArray[np.int64]]:
        """Returns encoded images and the sides of the decoded images."""
        assert self._pipeline is not None
        files, *peeked = self._pipeline.run()
        return files, admit(self._decoder, files, *peeked, on_gpu=self._on_gpu)


class FileReader(Reader):
    """Reads files: DALI receives their paths and reads them in its own threads.

    Every stride-th batch is read.
    """

    _started_ahead = 0  # batches that are started before DALI asks for them

    def __init__(
        self, index: Index, order: BatchOrder, settings: DaliSettings, decoder: Transform, stride: int
    ) -> None:
        super().__init__(index, order, settings, decoder)
        self._stride = stride
        self._started: deque[tuple[Cursor, StepSamples, Any]] = deque()
        self._memory: deque[Any] = deque()  # of the batches under way
        self._build(self._encoded)

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position."""
        self._started.clear()
        self._next = cursor

    def read(self) -> EncodedBatch:
        """Returns the next batch."""
        files, sides = self._run()
        return EncodedBatch(*self.under_way.popleft(), files, sides, self._memory.popleft())

    def _next_input(self) -> Any:
        """Returns DALI's input for the next batch."""
        while len(self._started) <= self._started_ahead:
            step = self._order.at(self._next)
            self._started.append((self._next, step, self._start(step.indices)))
            self._next = self._next.next(len(self._order), self._stride)
        cursor, step, started = self._started.popleft()
        self.under_way.append((cursor, step))
        source, memory = self._finish(started)
        self._memory.append(memory)
        return source

    def _start(self, positions: NDArray[np.int64]) -> Any:
        """Starts to read samples [N]."""
        return self._index.path_block(positions)  # one array: DALI accepts it far faster than a list

    def _finish(self, started: Any) -> tuple[Any, Any]:
        """Returns DALI's input for them, and the memory to keep while DALI uses it."""
        return started, None  # DALI copies the paths

    def _encoded(self) -> Node:
        # Memory-mapped files are slower: all threads share one lock for their pages.
        return fn.io.file.read(fn.external_source(self._next_input, batch=True), dont_use_mmap=True)


class MemoryReader(FileReader):
    """Reads samples other than files: threads read them ahead, and DALI receives the bytes.

    The bytes are copied once, from the system's memory to ours. Memory-mapped files would save that copy. But
    they end the process if a file is truncated or a network drive fails, and read a cold disk in small
    pieces.
    """

    _started_ahead = 1

    def __init__(
        self,
        index: Index,
        order: BatchOrder,
        settings: DaliSettings,
        decoder: Transform,
        stride: int,
        pool: Executor,
    ) -> None:
        self._pool = pool
        super().__init__(index, order, settings, decoder, stride)

    def _start(self, positions: NDArray[np.int64]) -> Any:
        # One task per thread: a task per image would cost more than reading it.
        parts = np.array_split(positions, min(self._threads, len(positions)))
        return [self._pool.submit(self._read_images, part.tolist()) for part in parts]

    def _finish(self, started: Any) -> tuple[Any, Any]:
        images = [image for part in started for image in part.result()]
        tensors = [TensorCPU(image, "") for image in images]
        in_place = TensorListCPU(tensors, "", contiguous=False)  # type: ignore[call-overload]
        return in_place, images

    def _encoded(self) -> Node:
        return fn.external_source(self._next_input, batch=True, no_copy=True)

    def _read_images(self, positions: list[int]) -> list[NDArray[np.uint8]]:
        return [self._read_image(position) for position in positions]

    def _read_image(self, position: int) -> NDArray[np.uint8]:
        """Returns no bytes for an image that can't be read: decoding fails, and then the reason is found."""
        try:
            return np.frombuffer(self._index.read(position), np.uint8)
        except DecodeError:
            return np.zeros(0, np.uint8)


class CacheReader(Reader):
    """Reads image files and passes their names to the decoder, whose cache identifies images by name.

    Only DALI's own file reader passes names on, and it reads a list from beginning to end. So each epoch has
    its own list, in our order.
    """

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position."""
        self.close()
        self._next = cursor

    def read(self) -> EncodedBatch:
        """Returns the next batch."""
        cursor, step = self._next, self._order.at(self._next)
        self.under_way.append((cursor, step))
        if self._pipeline is None:
            self._build(self._rest_of_epoch)
        files, sides = self._run()
        self.under_way.popleft()
        self._next = cursor.next(len(self._order))
        if self._next.epoch != cursor.epoch:
            self.close()
        return EncodedBatch(cursor, step, files, sides)

    def _rest_of_epoch(self) -> Node:
        epoch, first = self._next.epoch, self._next.step
        steps = (self._order.at(Cursor(epoch, step)) for step in range(first, len(self._order)))
        names = [os.fsdecode(self._index.path(position)) for step in steps for position in step.indices]
        files, _ = fn.readers.file(files=names)
        return files


def shut_down(pipeline: Pipeline) -> None:
    """Ends a pipeline's threads.

    The garbage collector might do so in one of these threads, which cannot wait for itself.
    """
    pipeline._shutdown()
