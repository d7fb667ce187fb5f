"""Feeds the training loop by ``paddle.io`` with worker processes: the same samples as DALI, by numpy."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any, cast

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.base import core

from ppcls.config.sections.sampler import InputSize
from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.bad_images.quarantine import CleanOrder, Quarantine
from ppcls.data.index.read import Index
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.input_size import resize_chain, size_at
from ppcls.data.sampling.order import BatchOrder, Cursor, Order
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import Op, count_draws
from ppcls.data.transforms.specs.rng import uniforms

Key = tuple[int, int, int, int]
Sample = tuple[NDArray[Any], Any]  # image, and label of one class or of all


@dataclass(frozen=True)
class _Bad:
    """Stands for a sample that can't be read: paddle.io would wrap an exception, or lose it in a thread."""

    position: int
    reason: str


class _Images(paddle.io.Dataset):  # type: ignore[misc]
    """Maps (epoch, position, repeat, size) to an image and its label; size 0 is the chain's own."""

    def __init__(self, index: Index, ops: Sequence[Op], seed: int) -> None:
        super().__init__()
        self._index, self._ops, self._seed = index, tuple(ops), seed
        self._draws = count_draws(ops)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, key: Key) -> Sample | _Bad:
        epoch, position, repeat, size = key
        draws = uniforms(self._seed, epoch, np.asarray([position]), self._draws, np.asarray([repeat]))[0]
        try:
            ops = resize_chain(self._ops, size) if size else self._ops
            image = run(ops, self._index.read(position), draws)
        except ValueError as error:
            return _Bad(position, str(error))
        return image, self._index.labels[position]


class _Steps(paddle.io.BatchSampler):  # type: ignore[misc]
    """Lists the samples of the epoch's remaining steps."""

    def __init__(self, plan: BatchOrder, sizes: InputSize | None) -> None:
        self._plan, self._sizes = plan, sizes
        self.cursor = Cursor()

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = self.cursor.epoch
        for step in range(self.cursor.step, len(self._plan)):
            yield self.keys(Cursor(epoch, step))

    def __len__(self) -> int:
        return len(self._plan) - self.cursor.step

    def keys(self, cursor: Cursor) -> list[Key]:
        """Returns what the samples of a step are asked for by."""
        part = self._plan.at(cursor)
        size = size_at(self._sizes, self._plan.seed, cursor) if self._sizes is not None else 0
        rows = zip(part.indices.tolist(), part.repeats.tolist(), strict=True)
        return [(cursor.epoch, *row, size) for row in rows]


def _stack(samples: list[Sample | _Bad]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns images and labels; instead of images what is bad, as [N] uint8 of JSON: position to reason."""
    bad = {sample.position: sample.reason for sample in samples if isinstance(sample, _Bad)}
    if bad:
        return np.frombuffer(json.dumps(bad).encode(), np.uint8), np.zeros(1, np.int64)
    images, labels = zip(*cast(list[Sample], samples), strict=True)
    return np.stack(images), np.asarray(labels)


def _read_bad(image: Any) -> dict[int, str]:
    """Returns what `_stack` gave in place of images; nothing where these are images."""
    if image.ndim > 1:
        return {}
    bad = json.loads(np.asarray(image).tobytes())
    return {int(position): reason for position, reason in bad.items()}


def collect_before_fork() -> None:
    """Frees what is garbage.

    A worker that inherits a DALI pipeline as garbage would shut it down, without its threads, and hang or
    crash. What one pipeline held of another is garbage only after the first is gone.
    """
    while gc.collect():
        pass


def end_with_parent(_worker: int) -> None:
    """Has a worker end when the run does, which may be killed: Paddle's own would wait for ever to be asked.

    Batches in shared memory that nobody will fetch are freed.
    """

    def end() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        core._cleanup_mmap_fds()  # type: ignore[attr-defined]
        os._exit(1)

    Thread(target=end, daemon=True).start()


class PaddleLoader:
    """A `ppcls.data.loaders.batch.Loader` over ``paddle.io.DataLoader``.

    Args:
        index: The samples.
        order: Which of them when.
        ops: The chain.
        workers: Processes; 0 reads in this one.
        use_shared_memory: Hand batches over in shared memory.
        sizes: Of the images, where they change from step to step.
        quarantine: Of bad images, to go on without; by default the first one ends the run.
    """

    def __init__(
        self,
        index: Index,
        order: Order,
        ops: Sequence[Op],
        workers: int,
        use_shared_memory: bool = True,
        sizes: InputSize | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.index, self.order, self.ops, self.sizes = index, order, tuple(ops), sizes
        self.quarantine = quarantine
        self._plan: BatchOrder = order if quarantine is None else CleanOrder(order, quarantine)
        self._steps, self._images = _Steps(self._plan, sizes), _Images(index, ops, order.seed)
        self._cursor = Cursor()
        self._loader = paddle.io.DataLoader(
            self._images,
            batch_sampler=self._steps,
            collate_fn=_stack,
            num_workers=workers,
            use_shared_memory=use_shared_memory and workers > 0,
            return_list=True,
            worker_init_fn=end_with_parent,
        )

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the present position to the end of the epoch."""
        self._steps.cursor = self._cursor
        if self._loader.num_workers:
            collect_before_fork()
        batches = iter(self._loader)
        try:
            for image, label in batches:
                image, label = self._mended(image, label)
                step = self._plan.at(self._cursor)
                self._cursor = self._cursor.next(len(self.order))
                yield Batch(image, label, step.valid, step.weight, step.update, step.indices)
        finally:
            batches._try_shutdown_all()  # else the workers of an iteration that is broken off live on

    def _mended(self, image: paddle.Tensor, label: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Returns a batch as it came, or made anew here as often as there are bad images to leave out."""
        bad = _read_bad(image)
        if not bad:
            return image, label
        while bad:
            if self.quarantine is None:
                raise bad_image_error(to_bad_images(self.index, bad))
            self.quarantine.add(bad)
            images, labels = _stack([self._images[key] for key in self._steps.keys(self._cursor)])
            bad = _read_bad(images)
        return paddle.to_tensor(images), paddle.to_tensor(labels)

    def release(self) -> None:
        """Does nothing: workers end with the iteration."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch that was yielded."""
        return self.order.state_dict(self._cursor)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state_dict` gave; see `Order.restore` for what is refused."""
        self._cursor = self.order.restore(state)
