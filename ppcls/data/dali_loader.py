"""Feeds the training loop by a DALI pipeline, on the CPU or a GPU.

The pipeline is told which samples to read, and their random numbers, by an external source; it reads
files (see encoded.py for other sources), decodes and transforms in its own threads, ahead of the training
step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn
from nvidia.dali.plugin.paddle import DALIGenericIterator

from ppcls.data.bad_images import explain_failure
from ppcls.data.batch import Batch
from ppcls.data.dali_ops import Device, lower_chain
from ppcls.data.draws import uniforms
from ppcls.data.encoded import Encoded, encoded_images
from ppcls.data.fuse import fuse
from ppcls.data.index import Index
from ppcls.data.order import Cursor, Order
from ppcls.data.transforms import Op, count_draws


class _Source:
    """Answers DALI's question for the next batch, and remembers which batches are under way."""

    def __init__(self, index: Index, encoded: Encoded, order: Order, draws: int) -> None:
        self._index, self._encoded, self._order, self.draws = index, encoded, order, draws
        self.cursor = Cursor()
        self.under_way: deque[Cursor] = deque()

    def __call__(self) -> list[Any]:
        """Returns what the pipeline takes: images, labels and, if the chain is random, uniform numbers."""
        cursor = self.cursor
        step = self._order.at(cursor)
        indices = step.indices
        self.under_way.append(cursor)
        self.cursor = cursor.next(len(self._order))
        images = self._encoded.batch(indices)
        labels = self._index.labels[indices]
        if not self.draws:
            return [images, labels]
        return [images, labels, uniforms(self._order.seed, cursor.epoch, indices, self.draws, step.repeats)]


Tensors = tuple[paddle.Tensor, paddle.Tensor]


def _on_gpu(pipeline: Pipeline) -> Iterator[Tensors]:
    """Yields images and labels on the GPU."""
    for (outputs,) in DALIGenericIterator([pipeline], ["image", "label"]):
        # The plugin gives Paddle's inner tensors; to_tensor wraps those of the same device without a copy.
        yield paddle.to_tensor(outputs["image"]), paddle.to_tensor(outputs["label"])


def _on_cpu(pipeline: Pipeline) -> Iterator[Tensors]:
    """Yields images and labels on the CPU, where DALIGenericIterator fails: it asks for a GPU's stream."""
    while True:
        image, label = (each.as_tensor() for each in pipeline.run())
        yield tuple(paddle.utils.dlpack.from_dlpack(each.__dlpack__()) for each in (image, label))


class DaliLoader:
    """A `ppcls.data.batch.Loader` over DALI.

    Args:
        index: The samples.
        order: Which of them when.
        ops: The chain.
        device_id: GPU to work on; None for the CPU.
        threads: CPU threads of the pipeline.
        prefetch: Batches made ahead.
    """

    def __init__(
        self,
        index: Index,
        order: Order,
        ops: Sequence[Op],
        device_id: int | None,
        threads: int,
        prefetch: int = 2,
    ) -> None:
        self._index, self.order, self._ops = index, order, tuple(ops)
        self._device_id, self._threads, self._prefetch = device_id, threads, prefetch
        self._encoded = encoded_images(index, threads)
        self._source = _Source(index, self._encoded, order, count_draws(ops))
        self._cursor = Cursor()
        self._batches: Iterator[Tensors] | None = None

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the present position to the end of the epoch."""
        epoch = self._cursor.epoch
        while self._cursor.epoch == epoch:
            cursor = self._cursor
            image, label = self._take(cursor)
            step = self.order.at(cursor)
            self._cursor = cursor.next(len(self.order))
            yield Batch(image, label, step.valid, step.weight, step.update)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch that was yielded."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state_dict` gave; see `Order.restore` for what is refused."""
        self._cursor = self.order.restore(state)

    def _take(self, cursor: Cursor) -> Tensors:
        """Returns the batch of ``cursor``, dropping batches that were made ahead for another position."""
        under_way = self._source.under_way
        if cursor not in under_way:
            self._source.cursor = cursor
        try:
            if self._batches is None:
                self._batches = self._build()
            while True:
                data = next(self._batches)
                if under_way.popleft() == cursor:
                    return data
        except RuntimeError as error:
            positions = self._order_of(under_way, cursor)
            self._batches = None  # a failed pipeline can't go on
            under_way.clear()
            raise explain_failure(self._index, positions, error) from error

    def _order_of(self, under_way: deque[Cursor], cursor: Cursor) -> NDArray[np.int64]:
        return np.concatenate([self.order.at(each).indices for each in (under_way or [cursor])])

    def _build(self) -> Iterator[Tensors]:
        pipeline = Pipeline(
            batch_size=self.order.batch_size,
            num_threads=self._threads,
            device_id=self._device_id,
            prefetch_queue_depth=self._prefetch,
            exec_dynamic=True,
        )
        with pipeline:
            inputs = 3 if self._source.draws else 2
            source, label, *draws = fn.external_source(self._source, num_outputs=inputs, batch=True)
            encoded = self._encoded.node(source)
            device: Device = "cpu" if self._device_id is None else "gpu"
            image = lower_chain(fuse(self._ops), encoded, draws[0] if draws else None, device, self._threads)
            pipeline.set_outputs(image, label if device == "cpu" else label.gpu())
        pipeline.build()
        return _on_cpu(pipeline) if device == "cpu" else _on_gpu(pipeline)
