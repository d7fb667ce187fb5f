"""Feeds the training loop by a DALI pipeline, on the CPU or a GPU.

An external source gives the pipeline encoded images and what was decided for each of them; it decodes
and transforms in its own threads, ahead of the training step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import paddle
from nvidia.dali import Pipeline
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]
from nvidia.dali.plugin.paddle import DALIGenericIterator

from ppcls.config.sections.sampler import InputSize
from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.bad_images.quarantine import CleanOrder, Quarantine
from ppcls.data.bad_images.search import bisect_bad_images, find_undecodable, is_image_error
from ppcls.data.images.header import DecodeError
from ppcls.data.index.read import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.loaders.dali.reader import shut_down
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.dali.source import Source
from ppcls.data.sampling.input_size import resize_chain
from ppcls.data.sampling.order import BatchOrder, Cursor, Order
from ppcls.data.sampling.sampler import ListSampler
from ppcls.data.transforms.dali_ops import Device, Node, Place, lower_each
from ppcls.data.transforms.specs import Op
from ppcls.files import RETRY_DELAYS

_KEPT = 4  # batches that the host may be ahead of the GPU
_READING = "fn.io.file.read"

Tensors = tuple[paddle.Tensor, paddle.Tensor]
Batches = Generator[Tensors, None, None]


def _on_gpu(pipeline: Pipeline) -> Batches:
    """Yields images and labels on the GPU.

    They are DALI's memory, which it takes back when nothing here refers to it any more. By then the GPU may
    not have begun what the host had it do with them, so they are kept until it is done.
    """
    kept: deque[tuple[paddle.device.cuda.Event, Tensors]] = deque()
    for (outputs,) in DALIGenericIterator([pipeline], ["image", "label"]):
        # The plugin gives Paddle's inner tensors; to_tensor wraps those of the same device without a copy.
        tensors = paddle.to_tensor(outputs["image"]), paddle.to_tensor(outputs["label"])
        yield tensors
        used = paddle.device.cuda.Event()
        used.record()
        kept.append((used, tensors))
        if len(kept) > _KEPT:
            kept[0][0].synchronize()
        while kept and kept[0][0].query():
            kept.popleft()


def _on_cpu(pipeline: Pipeline, keeps: bool) -> Batches:
    """Yields images and labels on the CPU, where DALIGenericIterator fails: it asks for a GPU's stream.

    Args:
        pipeline: Built.
        keeps: Whether the executor leaves a batch alone that it has handed out; else it is copied.
    """
    while True:
        outputs = [each.as_tensor() for each in pipeline.run()]
        if keeps:
            image, label = (paddle.utils.dlpack.from_dlpack(each.__dlpack__()) for each in outputs)
        else:
            image, label = (paddle.to_tensor(np.array(each)) for each in outputs)
        yield image, label


def hand_over(pipeline: Pipeline, settings: DaliSettings) -> Batches:
    """Yields a built pipeline's images and labels as Paddle's tensors, where they are."""
    return _on_gpu(pipeline) if settings.device_id is not None else _on_cpu(pipeline, settings.exec_dynamic)


@dataclass(frozen=True)
class Graph:
    """A loader's pipeline, not built yet, and what is in it.

    Attributes:
        pipeline: With its outputs set.
        source: What feeds it.
        ops: The chain as it was lowered.
        encoded: Node of the files' bytes.
        label: Node of the labels, on the pipeline's device.
        decided: Nodes of all ops' decisions, one after the other.
        images: Nodes of the images after each op.
    """

    pipeline: Pipeline
    source: Source
    ops: tuple[Op, ...]
    encoded: Node
    label: Node
    decided: tuple[Node, ...]
    images: tuple[Node, ...]


@dataclass
class _Lane:
    """One of the pipelines that make a loader's batches in turn."""

    source: Source
    pipeline: Pipeline
    batches: Batches

    def take(self, cursor: Cursor) -> Tensors:
        """Returns the batch of ``cursor``, dropping batches that were made ahead for another position."""
        if cursor not in self.source.under_way:
            self.source.seek(cursor)
        while True:
            data = next(self.batches)
            if self.source.taken() == cursor:
                return data

    def close(self) -> None:
        """Ends its threads."""
        self.batches.close()  # in so many words: Python ignores a Ctrl-C that comes while it tidies up
        shut_down(self.pipeline)
        self.source.close()


class DaliLoader:
    """A `ppcls.data.loaders.batch.Loader` over DALI.

    Args:
        index: The samples.
        order: Which of them when.
        ops: The chain.
        settings: Of DALI.
        sizes: Of the images, where they change from step to step.
        quarantine: Of bad images, to go on without; by default the first one ends the run.
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
        self.index, self.order, self._settings, self._sizes = index, order, settings, sizes
        self.quarantine = quarantine
        self._plan: BatchOrder = order if quarantine is None else CleanOrder(order, quarantine)
        self._decoder, self._asked = ops[0].spec, tuple(ops)
        self._ops = settings.fuse(ops)
        if sizes is not None:
            self._ops = resize_chain(self._ops, sizes.sizes[0])
        self._cursor = Cursor()
        self._lanes: list[_Lane] = []

    def __del__(self) -> None:
        self.release()

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the present position to the end of the epoch."""
        epoch = self._cursor.epoch
        while self._cursor.epoch == epoch:
            cursor = self._cursor
            image, label = self._take(cursor)
            step = self._plan.at(cursor)
            self._cursor = cursor.next(len(self.order))
            yield Batch(image, label, step.valid, step.weight, step.update, step.indices)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch that was yielded."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state_dict` gave; see `Order.restore` for what is refused."""
        self._cursor = self.order.restore(state)

    def _take(self, cursor: Cursor) -> Tensors:
        """Returns the batch of ``cursor``, as often begun anew as there are bad images to leave out."""
        waits = list(RETRY_DELAYS)
        while True:
            try:
                return self._next(cursor)
            except (RuntimeError, DecodeError) as error:
                under_way = self._lane(cursor).source.under_way if self._lanes else []
                self.release()  # a failed pipeline can't go on
                bad = self._find_bad(under_way or [cursor], error)
                if not bad and waits and _READING in str(error):
                    time.sleep(waits.pop(0))  # a network drive failed, and is back
                    continue
                if not bad:
                    raise
                if self.quarantine is None:
                    raise bad_image_error(to_bad_images(self.index, bad)) from error
                self.quarantine.add(bad)

    def _next(self, cursor: Cursor) -> Tensors:
        """Returns the batch of ``cursor``."""
        if not self._lanes:
            self._build()
        return self._lane(cursor).take(cursor)

    def _lane(self, cursor: Cursor) -> _Lane:
        """Returns whose turn a batch is."""
        return self._lanes[(cursor.epoch * len(self.order) + cursor.step) % len(self._lanes)]

    def _find_bad(self, under_way: list[Cursor], error: Exception) -> dict[int, str]:
        """Returns the bad images among batches, one of which failed with ``error``."""
        batches = [self._plan.at(cursor).indices.tolist() for cursor in under_way]
        bad = find_undecodable(self.index, self._decoder, chain.from_iterable(batches))
        if not bad and (isinstance(error, DecodeError) or is_image_error(str(error))):
            for batch in batches:
                bad |= bisect_bad_images(list(dict.fromkeys(batch)), self._fails)
        return bad

    def _fails(self, positions: list[int]) -> str | None:
        """Returns the error of a batch of these samples; None where DALI can do it."""
        order = Order(ListSampler(tuple(positions)), batch_size=len(positions), seed=self.order.seed)
        settings = replace(self._settings, prefetch=1)
        try:
            DaliLoader(self.index, order, self._asked, settings, self._sizes)._next(Cursor())
        except (RuntimeError, DecodeError) as error:
            return str(error)
        return None

    def release(self) -> None:
        """Ends all pipelines, and returns the memory they leave; the next iteration builds them anew."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.close()
        if lanes:
            ReleaseUnusedMemory()

    def graph(self) -> Graph:
        """Makes one of its pipelines, with the whole graph, for itself or for who describes it."""
        settings, stride = self._settings.of_each(), self._settings.pipelines
        device: Device = "cpu" if settings.device_id is None else "gpu"
        source = Source(self.index, self._plan, self._decoder, self._ops, settings, self._sizes, stride)
        pipeline = Pipeline(
            batch_size=self.order.batch_size,
            num_threads=settings.threads,
            device_id=settings.device_id,
            prefetch_queue_depth=settings.prefetch,
            exec_dynamic=settings.exec_dynamic,
        )
        with pipeline:
            encoded, (label, *decided) = source.nodes()
            place = Place(
                device,
                settings.threads,
                pool=source.pool,
                decoder=settings.decoder,
                decodes_on_gpu=settings.decodes_on_gpu,
            )
            images = lower_each(self._ops, encoded, decided, place)
            label = label if device == "cpu" else label.gpu()
            pipeline.set_outputs(images[-1], label)
        return Graph(pipeline, source, self._ops, encoded, label, tuple(decided), tuple(images))

    def _build(self) -> None:
        settings = self._settings
        with settings.on_cores():
            for _ in range(settings.pipelines):
                graph = self.graph()
                batches = hand_over(graph.pipeline, settings)
                self._lanes.append(_Lane(graph.source, graph.pipeline, batches))
                graph.pipeline.build()
