"""Reads encoded images and their sizes ahead of the pipeline that decodes them.

Reading has a separate pipeline for two reasons. DALI runs the CPU operators of one pipeline one after the
other, so reading in the decoding pipeline would delay decoding. And decisions that depend on the size of an
image, such as the window of a random crop, must be made before decoding starts.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn
from nvidia.dali.backend import TensorCPU, TensorListCPU

from ppcls.data.images.header import DecodeError, check_size
from ppcls.data.images.sizes import read_size
from ppcls.data.index.files import FileIndex
from ppcls.data.index.pixels import PixelIndex
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.dali.headers import Node, admit, peek
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.order import BatchOrder, Cursor, StepSamples
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.dali_ops.internals import shut_down
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.errors import UserError
from ppcls.runtime.native_errors import filter_decoder_messages

_T = TypeVar("_T")
_PREFETCH = 2  # batches


@dataclass(frozen=True)
class EncodedBatch:
    """One batch before decoding.

    Attributes:
        cursor: Position of the batch in the run.
        step: Samples of the batch.
        files: [B] encoded images, or pixels (see `PixelReader`), a DALI tensor list on the CPU.
        sides: [B, 2] int64, heights and widths of the decoded images, after applying the EXIF orientation.
        memory: Objects that own the bytes of ``files``; None if DALI owns them.
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
    """Builds the reader that suits the dataset and the settings.

    Args:
        index: The samples.
        order: Batches to read.
        settings: Settings of DALI.
        decoder: First transform of the chain, which decodes an image. It determines which images are
            rejected.
        pool: Threads that read samples of datasets other than image files.
        stride: Distance between the batches to read; with 3, the reader reads every third batch.

    Raises:
        UserError: The decoder's cache is enabled, but the samples are not image files.
    """
    if settings.caches:
        if not isinstance(index, FileIndex):
            raise UserError(
                f"{index.source}: the decoder's cache supports only datasets of image files; set "
                "dali.cache_size: 0"
            )
        kind: type[Reader] = CacheReader
    elif count_channels_in_memory(index, decoder):
        kind = PixelReader
    elif isinstance(index, FileIndex):
        kind = FileReader
    else:
        kind = find_memory_reader(decoder)
    return kind(index, order, settings, decoder, stride, pool)


class Reader:
    """Base class of readers, which read batches in order, from the position that `seek` sets.

    See `build_reader` for the arguments.

    Attributes:
        under_way: Positions and samples of the batches that were requested and not yet returned.
        node: Node of the encoded images in the reader's pipeline; None until the pipeline is built.
    """

    def __init__(
        self,
        index: Any,
        order: BatchOrder,
        settings: DaliSettings,
        decoder: Transform,
        stride: int,
        pool: Executor,
    ) -> None:
        self._index = index
        self._order = order
        self._decoder = decoder
        self._threads = settings.threads
        self._on_gpu = settings.decodes_on_gpu
        self._stride = stride
        self._pool = pool
        self._next = Cursor()
        self._pipeline: Pipeline | None = None
        self.under_way: deque[tuple[Cursor, StepSamples]] = deque()
        self.node: Node = None
        self._prepare()

    def _prepare(self) -> None:
        """Prepares to read the first batch. The constructor calls it."""

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position. Batches in progress are still returned first."""
        self._next = cursor

    def read(self) -> EncodedBatch:
        """Returns the next batch.

        Raises:
            RuntimeError: A file can't be read or is not an image. The reader can't be used after this error.
            DecodeError: `admit` rejected an image.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends the threads of the reader's pipeline."""
        if self._pipeline is not None:
            shut_down(self._pipeline)
        self._pipeline = None

    def _build(self, add_encoded: Callable[[], Node]) -> None:
        """Builds the reader's pipeline.

        Args:
            add_encoded: Adds the node of the encoded images to the current graph, and returns the node.
        """
        filter_decoder_messages()
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
        """Runs the pipeline. Returns encoded images, and heights and widths of the decoded images."""
        assert self._pipeline is not None
        files, *peeked = self._pipeline.run()
        return files, admit(self._decoder, files, *peeked, on_gpu=self._on_gpu)


def count_channels_in_memory(index: Index, decoder: Transform) -> int:
    """Returns the number of channels of pixels that a pipeline receives instead of files; 0 for files.

    Args:
        index: The samples.
        decoder: First transform of the chain. If it does more than to order the channels of the pixels, the
            pipeline decodes files.
    """
    if not isinstance(index, PixelIndex):
        return 0
    height, width, channels = index.shape
    return channels if decoder.only_orders_channels(width, height) else 0


class PixelReader(Reader):
    """Returns images whose pixels are in memory, in the layout HWC. It needs no pipeline and no threads."""

    def read(self) -> EncodedBatch:
        """Returns the next batch, whose ``files`` are pixels."""
        cursor = self._next
        step = self._order.at(cursor)
        self._next = cursor.next(len(self._order), self._stride)
        pixels = self._index.read_pixels(step.indices)
        sides = np.tile(np.array(pixels.shape[1:3], np.int64), (len(pixels), 1))
        return EncodedBatch(cursor, step, TensorListCPU(pixels, "HWC"), sides, pixels)


class FileReader(Reader):
    """Reads image files: DALI receives paths, and reads the files in its own threads."""

    _started_ahead = 0  # number of batches that the reader starts before DALI requests them

    def _prepare(self) -> None:
        self._started: deque[tuple[Cursor, StepSamples, Any]] = deque()
        self._memory: deque[Any] = deque()  # owners of the bytes of the batches in progress
        self._build(self._encoded)

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position."""
        self._started.clear()
        super().seek(cursor)

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
        """Starts to read the samples at positions [N], and returns a handle for `_finish`."""
        return self._index.path_block(positions)  # one array: DALI accepts it far faster than a list

    def _finish(self, started: Any) -> tuple[Any, Any]:
        """Waits for samples that `_start` requested. Returns DALI's input and the owner of its memory."""
        return started, None  # DALI copies the paths

    def _encoded(self) -> Node:
        # Memory-mapped files are slower, because all threads share one lock for the mapped pages.
        return fn.io.file.read(fn.external_source(self._next_input, batch=True), dont_use_mmap=True)


class MemoryReader(FileReader):
    """Reads samples that are not image files: threads read ahead, and DALI receives the bytes.

    The bytes are copied once, from the page cache to the process. Memory-mapped files would avoid this copy.
    But the process would crash if a file is truncated or a network drive fails, and uncached files would be
    read in small blocks.
    """

    _started_ahead = 1

    def _start(self, positions: NDArray[np.int64]) -> Any:
        return _submit(self._pool, self._threads, self._read_images, positions)

    def _finish(self, started: Any) -> tuple[Any, Any]:
        images = [image for part in started for image in part.result()]
        return _without_copy(images), images

    def _encoded(self) -> Node:
        return fn.external_source(self._next_input, batch=True, no_copy=True)

    def _read_images(self, positions: list[int]) -> list[NDArray[np.uint8]]:
        return [self._read_image(position) for position in positions]

    def _read_image(self, position: int) -> NDArray[np.uint8]:
        """Returns the encoded image, or an empty array if it can't be read.

        Decoding the empty array fails, and the loader then determines the reason.
        """
        try:
            return np.frombuffer(self._index.read(position), np.uint8)
        except DecodeError:
            return np.zeros(0, np.uint8)


class ArrayReader(Reader):
    """Reads ``.npy`` arrays that are not files, such as the images of `ppcls.data.image_cache`.

    Threads read ahead and check the headers. It needs no pipeline, because DALI has nothing to find out about
    arrays. A pipeline would pass each array to the main thread and back, while the next steps wait.
    """

    def _prepare(self) -> None:
        self._parts: deque[list[Future[list[_ReadArray]]]] = deque()  # of the batches under way

    def read(self) -> EncodedBatch:
        """Returns the next batch.

        Raises:
            DecodeError: An array can't be read, or it is not what the decoder expects.
        """
        while len(self._parts) < _PREFETCH:
            step = self._order.at(self._next)
            self.under_way.append((self._next, step))
            self._parts.append(_submit(self._pool, self._threads, self._read, step.indices))
            self._next = self._next.next(len(self._order), self._stride)
        arrays = [array for part in self._parts[0] for array in part.result()]
        self._parts.popleft()
        cursor, step = self.under_way.popleft()
        contents = [array.content for array in arrays]
        sides = np.array([array.sides for array in arrays], np.int64)
        return EncodedBatch(cursor, step, _without_copy(contents), sides, contents)

    def _read(self, positions: list[int]) -> list[_ReadArray]:
        arrays = []
        for position in positions:
            content = self._index.read(position)
            check_size(len(content))
            width, height = read_size(self._decoder, content)
            arrays.append(_ReadArray(np.frombuffer(content, np.uint8), (height, width)))
        return arrays


class _ReadArray(NamedTuple):
    """The content of a file, [N] uint8, and height and width of its array."""

    content: NDArray[np.uint8]
    sides: tuple[int, int]


def _submit(
    pool: Executor, threads: int, read: Callable[[list[int]], list[_T]], positions: NDArray[np.int64]
) -> list[Future[list[_T]]]:
    """Starts to read the samples at positions [N], with one task per thread.

    A task per image would take longer than reading the image.
    """
    parts = np.array_split(positions, min(threads, len(positions)))
    return [pool.submit(read, part.tolist()) for part in parts]


def _without_copy(contents: list[NDArray[np.uint8]]) -> TensorListCPU:
    """Returns a tensor list of arrays, which must exist as long as DALI uses it."""
    tensors = [TensorCPU(content, "") for content in contents]
    in_place: TensorListCPU = TensorListCPU(tensors, "", contiguous=False)  # type: ignore[call-overload]
    return in_place


@singledispatch
def find_memory_reader(decoder: Transform) -> type[MemoryReader | ArrayReader]:  # noqa: ARG001
    """Returns the class that reads samples which are not files."""
    return MemoryReader


@find_memory_reader.register
def find_array_reader(decoder: DecodeNumpy) -> type[ArrayReader]:  # noqa: ARG001
    """Returns the class that reads arrays."""
    return ArrayReader


class CacheReader(Reader):
    """Reads image files and passes their names to the decoder, whose cache identifies images by file name.

    Only DALI's file reader passes names to the decoder, and it reads a list from beginning to end. So each
    epoch has a separate list, in the order of the epoch.
    """

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position."""
        self.close()
        super().seek(cursor)

    def read(self) -> EncodedBatch:
        """Returns the next batch."""
        cursor = self._next
        step = self._order.at(self._next)
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
        epoch = self._next.epoch
        first = self._next.step
        steps = (self._order.at(Cursor(epoch, step)) for step in range(first, len(self._order)))
        names = [os.fsdecode(self._index.path(position)) for step in steps for position in step.indices]
        files, _ = fn.readers.file(files=names)
        return files
