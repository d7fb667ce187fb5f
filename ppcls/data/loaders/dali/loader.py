"""Loads images with DALI pipelines, on the CPU or a GPU.

External sources pass encoded images and the random decisions for each image to a pipeline. The pipeline
decodes and transforms the images in its own threads, ahead of the training step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]

from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.bad_images.search import (
    bisect_bad_images,
    find_undecodable,
    is_image_error,
    is_memory_error,
)
from ppcls.data.images.header import DecodeError
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.base import OrderedLoader
from ppcls.data.loaders.batch import Batch
from ppcls.data.loaders.dali.iterator import PipelineIterator
from ppcls.data.loaders.dali.pipes import PipeUnblocker
from ppcls.data.loaders.dali.reader import EncodedBatch, Reader, build_reader, count_channels_in_memory
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.epoch_samplers import ListSampler
from ppcls.data.sampling.order import BatchOrder, Cursor, Order
from ppcls.data.sampling.sizes import InputSize
from ppcls.data.transforms.dali_ops import LoweringContext, Node, lower_chain
from ppcls.data.transforms.dali_ops.internals import shut_down
from ppcls.data.transforms.specs import Op, count_draws
from ppcls.data.transforms.specs.chain import decide_chain
from ppcls.data.transforms.specs.decisions import count_decisions
from ppcls.data.transforms.specs.fuse import resize_chain
from ppcls.data.transforms.specs.rng import uniforms
from ppcls.errors import counted
from ppcls.files import RETRY_DELAYS

_READ_OPERATOR = "fn.io.file.read"

Tensors = tuple[paddle.Tensor, paddle.Tensor]
Batches = Generator[Tensors, None, None]


def iter_batches(pipeline: Pipeline) -> Batches:
    """Yields the images and labels of a pipeline as Paddle tensors on the pipeline's device."""
    for tensors in PipelineIterator(pipeline, ["image", "label"]):
        yield tensors["image"], tensors["label"]


@dataclass
class _BatchInDecoding:
    """A batch in the pipeline. Keeps the encoded bytes, which DALI does not copy, until they are decoded."""

    batch: EncodedBatch
    passed: set[str] = field(default_factory=set)  # inputs that the pipeline has already requested


class PipelineInput:
    """Provides the inputs of a decoding pipeline, and tracks the batches in progress.

    Args:
        index: The samples.
        order: Batches to load.
        ops: Chain of transforms that the pipeline runs.
        sizes: Sizes of the images if they change from step to step, else None.
        reader: Reads the encoded images.
        pool: Threads of the reader.
    """

    def __init__(
        self,
        index: Index,
        order: BatchOrder,
        ops: tuple[Op, ...],
        sizes: InputSize | None,
        reader: Reader,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._index = index
        self._order = order
        self._ops = ops
        self._sizes = sizes
        self.reader = reader
        self._pool = pool
        self._draws = count_draws(ops)
        self._decoding: deque[_BatchInDecoding] = deque()

    @property
    def under_way(self) -> list[Cursor]:
        """Positions of the batches that were requested and not yet returned, in order."""
        reading = [cursor for cursor, _ in self.reader.under_way]
        return [work.batch.cursor for work in self._decoding] + reading

    def seek(self, cursor: Cursor) -> None:
        """Continues from another position. The pipeline still returns the batches in progress first."""
        self.reader.seek(cursor)

    def pop(self) -> Cursor:
        """Removes the batch that the pipeline has just returned, and returns its position."""
        return self._decoding.popleft().batch.cursor

    def close(self) -> None:
        """Ends the threads of the reader."""
        self.reader.close()
        self._pool.shutdown(wait=False)

    def nodes(self) -> tuple[Node, list[Node]]:
        """Adds the external sources to the current graph.

        The encoded images are large, and the reader owns them, so DALI does not copy them. It copies labels
        and decisions.

        Returns:
            Node of the encoded images; and the nodes of the labels and of the decisions of all ops.
        """
        count = 1 + sum(count_decisions(op.spec) for op in self._ops)
        files = fn.external_source(self._files, batch=True, no_copy=True)
        return files, list(fn.external_source(self._arrays, batch=True, num_outputs=count))

    def _files(self) -> Any:
        return self._next("files").files

    def _arrays(self) -> list[Any]:
        batch = self._next("arrays")
        indices = batch.step.indices
        draws = uniforms(self._order.seed, batch.cursor.epoch, indices, self._draws, batch.step.repeats)
        ops = self._ops
        if self._sizes is not None:
            ops = resize_chain(ops, self._sizes.size_at(self._order.seed, batch.cursor))
        decisions = decide_chain(ops, draws, batch.sides)
        return [self._index.labels[indices], *chain.from_iterable(decisions)]

    def _next(self, part: str) -> EncodedBatch:
        """Returns the first batch whose ``part`` was not requested yet. DALI requests inputs in any order."""
        decoding = next((work for work in self._decoding if part not in work.passed), None)
        if decoding is None:
            decoding = _BatchInDecoding(self.reader.read())
            self._decoding.append(decoding)
        decoding.passed.add(part)
        return decoding.batch


@dataclass(frozen=True)
class DaliGraph:
    """A DALI pipeline before it is built, and the nodes of its graph.

    Attributes:
        pipeline: The pipeline, with its outputs set.
        input: Inputs of the pipeline.
        ops: Chain of transforms in the pipeline, after fusion.
        encoded: Node of the encoded images.
        label: Node of the labels, on the pipeline's device.
        decisions: Nodes of the decisions of all ops, in the order of the ops.
        images: Nodes of the images, one after each op.
    """

    pipeline: Pipeline
    input: PipelineInput
    ops: tuple[Op, ...]
    encoded: Node
    label: Node
    decisions: tuple[Node, ...]
    images: tuple[Node, ...]


@dataclass
class _RunningPipeline:
    """One of the pipelines that prepare the batches of a loader in turn."""

    input: PipelineInput
    pipeline: Pipeline
    batches: Batches

    def take(self, cursor: Cursor) -> Tensors:
        """Returns the batch at ``cursor``. Drops batches that were prefetched for other positions."""
        if cursor not in self.input.under_way:
            self.input.seek(cursor)
        while True:
            tensors = next(self.batches)
            if self.input.pop() == cursor:
                return tensors

    def close(self) -> None:
        """Ends the threads of the pipeline and of its reader."""
        # Explicitly, because Python ignores a Ctrl-C that arrives during garbage collection.
        self.batches.close()
        shut_down(self.pipeline)
        self.input.close()


class DaliLoader(OrderedLoader):
    """Implements `ppcls.data.loaders.batch.Loader` with DALI.

    Args:
        index: The samples.
        order: Order of the samples.
        ops: Chain of transforms. The first one decodes the images.
        settings: Settings of DALI.
        sizes: Sizes of the images if they change from step to step, else None.
        quarantine: Collects the bad images, which the loader skips; None if the first bad image ends the run.
    """

    def __init__(
        self,
        index: Index,
        order: Order,
        ops: Sequence[Op],
        settings: DaliSettings,
        sizes: InputSize | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        super().__init__(index, order, quarantine)
        self._settings = settings
        self._sizes = sizes
        self._decoder = ops[0].spec
        self._unfused = tuple(ops)
        self._ops = settings.fuse(ops)
        if sizes is not None:
            self._ops = resize_chain(self._ops, sizes.sizes[0])
        self._running: list[_RunningPipeline] = []
        self._pipes: PipeUnblocker | None = None

    def __del__(self) -> None:
        self.release()

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the current position to the end of the epoch."""
        self._read_ahead()
        epoch = self._cursor.epoch
        while self._cursor.epoch == epoch:
            yield self._advance(*self._take_without_bad(self._cursor))

    def _take_without_bad(self, cursor: Cursor) -> Tensors:
        """Returns the batch at ``cursor``.

        If a pipeline fails, this finds the bad images, replaces them, rebuilds the pipelines and retries.

        Raises:
            MemoryError: There is enough memory for each image, but not for all of a batch.
        """
        waits = list(RETRY_DELAYS)
        while True:
            try:
                return self._take(cursor)
            except (RuntimeError, DecodeError, MemoryError) as error:
                under_way = self._pipeline_for(cursor).input.under_way if self._running else []
                self.release()  # a failed pipeline can't continue
                bad = self._find_bad(under_way or [cursor], error)
                if not bad and waits and _READ_OPERATOR in str(error):
                    time.sleep(waits.pop(0))  # a network drive may have failed for a moment
                    continue
                if not bad and is_memory_error(error):
                    raise MemoryError(
                        f"DALI has not enough memory to prepare {counted(self.order.batch_size, 'image')} at "
                        "once"
                    ) from error
                if not bad:
                    raise
                if self.quarantine is None:
                    raise bad_image_error(to_bad_images(self.index, bad)) from error
                self.quarantine.add(bad)

    def _take(self, cursor: Cursor) -> Tensors:
        if not self._running:
            self._build()
        assert self._pipes is not None
        with self._pipes.waiting():
            return self._pipeline_for(cursor).take(cursor)

    def _pipeline_for(self, cursor: Cursor) -> _RunningPipeline:
        """Returns the pipeline that prepares the batch at ``cursor``."""
        return self._running[(cursor.epoch * len(self.order) + cursor.step) % len(self._running)]

    def _find_bad(self, under_way: list[Cursor], error: Exception) -> dict[int, str]:
        """Returns the positions and reasons of bad images in batches, one of which failed with ``error``."""
        batches = [self._plan.at(cursor).indices.tolist() for cursor in under_way]
        bad = find_undecodable(self._encoded, self._decoder, chain.from_iterable(batches))
        starved = is_memory_error(error)
        if not bad and (isinstance(error, DecodeError) or is_image_error(str(error)) or starved):
            for batch in batches:
                positions = list(dict.fromkeys(batch))
                culprits = bisect_bad_images(positions, self._error_of)
                # If all images fail, the machine lacks memory, whatever the images are.
                if starved and len(culprits) == len(positions) > 1:
                    continue
                bad |= culprits
        return bad

    def _error_of(self, positions: list[int]) -> str | None:
        """Loads these samples as one batch. Returns the error, or None if DALI can load the batch."""
        order = Order(ListSampler(tuple(positions)), batch_size=len(positions), seed=self.order.seed)
        try:
            for settings in self._settings.per_device():
                one_batch = replace(settings, prefetch=1)
                DaliLoader(self._encoded, order, self._unfused, one_batch, self._sizes)._take(Cursor())
        except (RuntimeError, DecodeError) as error:
            return str(error)
        except MemoryError:
            return "std::bad_alloc"
        return None

    @classmethod
    def run_chunks(
        cls, index: Index, chunks: Sequence[Sequence[int]], ops: Sequence[Op], settings: DaliSettings
    ) -> Generator[list[NDArray[Any]], None, None]:
        """Yields the images of samples after a chain that runs on the CPU, whatever their sizes.

        Args:
            index: The samples.
            chunks: Positions of the samples. Only the last chunk may be shorter than the others.
            ops: Chain without random transforms.
            settings: Settings of DALI, with a prefetch of 1.

        Yields:
            The images of a chunk. DALI reuses their memory when the next chunk is requested, and decodes that
            chunk meanwhile.

        Raises:
            RuntimeError, DecodeError, MemoryError: An image of this chunk or the next one can't be read or
                decoded.
        """
        order = Order(ListSampler(tuple(chain.from_iterable(chunks))), batch_size=len(chunks[0]))
        graph = cls(index, order, ops, settings).graph()
        pipes = PipeUnblocker(index, [graph.input.reader])
        try:
            graph.pipeline.build()
            with pipes.waiting():
                graph.pipeline.schedule_run()
            for number, chunk in enumerate(chunks, 1):
                with pipes.waiting():
                    images, _ = graph.pipeline.outputs()
                    graph.input.pop()
                    if number < len(chunks):
                        graph.pipeline.schedule_run()
                yield [np.asarray(images[row]) for row in range(len(chunk))]
        finally:
            pipes.close()
            shut_down(graph.pipeline)
            graph.input.close()

    def release(self) -> None:
        """Ends all pipelines and frees their memory. The next iteration rebuilds them."""
        running = self._running
        self._running = []
        pipes = self._pipes
        self._pipes = None
        if pipes is None:
            return
        with pipes.waiting():
            for loader in running:
                loader.close()
        pipes.close()
        ReleaseUnusedMemory()

    def graph(self, number: int = 0) -> DaliGraph:
        """Creates the complete graph of one pipeline, either to build and run it or to describe it.

        Args:
            number: Number of the pipeline, from 0.
        """
        settings = self._settings.per_pipeline(number)
        stride = self._settings.pipelines
        pool = ThreadPoolExecutor(self._settings.python_threads, "images", settings.move_thread)
        reader = build_reader(self._encoded, self._plan, settings, self._decoder, pool, stride)
        source = PipelineInput(self._encoded, self._plan, self._ops, self._sizes, reader, pool)
        pipeline = Pipeline(
            batch_size=self.order.batch_size,
            num_threads=settings.threads,
            device_id=settings.device_id,
            prefetch_queue_depth=settings.prefetch,
            exec_dynamic=settings.exec_dynamic,
        )
        context = LoweringContext(
            device="cpu" if settings.device_id is None else "gpu",
            threads=self._settings.python_threads,
            pool=pool,
            decoder=settings.decoder,
            decodes_on_gpu=settings.decodes_on_gpu,
            channels_in_memory=count_channels_in_memory(self._encoded, self._decoder),
        )
        with pipeline:
            encoded, (label, *decisions) = source.nodes()
            images = lower_chain(self._ops, encoded, decisions, context)
            label = label if context.device == "cpu" else label.gpu()
            pipeline.set_outputs(images[-1], label)
        return DaliGraph(pipeline, source, self._ops, encoded, label, tuple(decisions), tuple(images))

    def _build(self) -> None:
        settings = self._settings
        readers = list[Reader]()
        self._pipes = PipeUnblocker(self._encoded, readers)
        with settings.on_cores():
            for number in range(settings.pipelines):
                graph = self.graph(number)
                batches = iter_batches(graph.pipeline)
                self._running.append(_RunningPipeline(graph.input, graph.pipeline, batches))
                readers.append(graph.input.reader)
                graph.pipeline.build()
