"""Loads images with ``paddle.io`` and worker processes.

Transforms run in NumPy and OpenCV. The samples and their random decisions are the same as with DALI.

`paddle.io` has no public way to end its workers, to ask for their exit codes and to free their shared memory.
The private names are the same in Paddle 2.6.2 and 3.3.1. tests/data/loaders/test_loader_resources.py kills
workers and counts what remains in shared memory.
"""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, cast
from weakref import finalize

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.base import core

from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.base import OrderedLoader
from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.order import BatchOrder, Cursor, Order
from ppcls.data.sampling.sizes import InputSize
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import Op, count_draws
from ppcls.data.transforms.specs.fuse import resize_chain
from ppcls.data.transforms.specs.rng import uniforms
from ppcls.errors import UserError, counted
from ppcls.files.objects import StorageAccessError, StorageError
from ppcls.runtime.signals import group_signals_blocked, ignore_group_signals

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_NO_SWITCH = 60.0  # seconds
_STORAGE = {-1: StorageError, -2: StorageAccessError}  # by a number instead of the position of a bad sample
Sample = tuple[NDArray[Any], Any]  # image; and its class id, or 0 or 1 for each class


@dataclass(frozen=True)
class PaddleSettings:
    """Settings of ``paddle.io.DataLoader``.

    Attributes:
        workers: Number of worker processes. With 0, the training process loads the images.
        use_shared_memory: Whether workers pass batches to the training process through shared memory.
    """

    workers: int = 0
    use_shared_memory: bool = True


class SampleKey(NamedTuple):
    """Identifies a sample at one point of a run.

    Attributes:
        epoch: Epoch, from 0.
        position: Position of the sample in the index.
        repeat: Number of earlier occurrences of the sample in the epoch.
        size: Side of the image in pixels; 0 for the size that the chain sets.
    """

    epoch: int
    position: int
    repeat: int
    size: int


class ChainInput(NamedTuple):
    """Arguments of `ppcls.data.transforms.numpy_ops.run` for one sample.

    Attributes:
        ops: Chain of transforms.
        encoded: Encoded image.
        draws: [D] uniform random numbers of the chain.
    """

    ops: tuple[Op, ...]
    encoded: bytes | memoryview
    draws: NDArray[np.float32]


@dataclass(frozen=True)
class _BadSample:
    """Replaces a sample that can't be read. An exception would be changed or lost in paddle.io.

    Attributes:
        position: Position of the sample; a number of `_STORAGE` if the storage of the samples can't be read.
        reason: Reason, for messages.
    """

    position: int
    reason: str


class _ImageDataset(paddle.io.Dataset):  # type: ignore[misc]
    """Maps a `SampleKey` to an image and its label, or to a `_BadSample`."""

    def __init__(self, index: Index, ops: Sequence[Op], seed: int) -> None:
        super().__init__()
        self._index = index
        self._ops = tuple(ops)
        self._seed = seed
        self._draws = count_draws(ops)

    def __len__(self) -> int:
        return len(self._index)

    def chain_input(self, key: SampleKey) -> ChainInput:
        """Reads a sample and draws its random numbers."""
        positions = np.asarray([key.position])
        repeats = np.asarray([key.repeat])
        draws = uniforms(self._seed, key.epoch, positions, self._draws, repeats)[0]
        ops = resize_chain(self._ops, key.size) if key.size else self._ops
        return ChainInput(ops, self._index.read(key.position), draws)

    def __getitem__(self, key: SampleKey) -> Sample | _BadSample:
        try:
            image = run(*self.chain_input(key))
        except ValueError as error:
            return _BadSample(key.position, str(error))
        except StorageError as error:
            return _BadSample(-1, str(error))
        except StorageAccessError as error:
            return _BadSample(-2, str(error))
        return image, self._index.labels[key.position]


class _StepSampler(paddle.io.BatchSampler):  # type: ignore[misc]
    """Yields the keys of the samples in each step from ``cursor`` on, epoch after epoch without end."""

    def __init__(self, plan: BatchOrder, sizes: InputSize | None) -> None:
        self._plan = plan
        self._sizes = sizes
        self.cursor = Cursor()

    def __iter__(self) -> Iterator[list[SampleKey]]:
        cursor = self.cursor
        while True:
            yield self.keys(cursor)
            cursor = cursor.next(len(self._plan))

    def keys(self, cursor: Cursor) -> list[SampleKey]:
        """Returns the keys of the samples in a step."""
        step = self._plan.at(cursor)
        size = self._sizes.size_at(self._plan.seed, cursor) if self._sizes is not None else 0
        rows = zip(step.indices.tolist(), step.repeats.tolist(), strict=True)
        return [SampleKey(cursor.epoch, *row, size) for row in rows]


def _stack(samples: list[Sample | _BadSample]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the images and labels of a batch.

    If samples are bad, the first array is [N] uint8 instead: JSON text that maps their positions to reasons.
    """
    bad = {sample.position: sample.reason for sample in samples if isinstance(sample, _BadSample)}
    if bad:
        return np.frombuffer(json.dumps(bad).encode(), np.uint8), np.zeros(1, np.int64)
    images, labels = zip(*cast(list[Sample], samples), strict=True)
    return np.stack(images), np.asarray(labels)


def _read_bad(image: Any) -> dict[int, str]:
    """Returns the reasons that `_stack` encoded, keyed by position; empty if ``image`` is a batch."""
    if image.ndim > 1:
        return {}
    bad = {int(position): reason for position, reason in json.loads(np.asarray(image).tobytes()).items()}
    for number, kind in _STORAGE.items():
        if number in bad:
            raise kind(bad[number])
    return bad


def collect_before_fork() -> None:
    """Runs the garbage collector until no garbage is left.

    A worker that inherits a DALI pipeline as garbage would try to shut the pipeline down, and would hang or
    crash, because the pipeline's threads do not exist in the worker. Several runs can be necessary, because
    objects that a pipeline refers to become garbage only after the pipeline is freed.
    """
    while gc.collect():
        pass


def exit_with_parent(_worker: int) -> None:
    """Makes this worker end when the training process ends or stops it, and ignore all other signals.

    Without this, Paddle's workers would wait forever for a training process that was killed, and would end
    before the training process has saved when a signal stops the whole group of processes. The worker frees
    its batches in shared memory, also those that a killed training process had received and not yet freed.
    """

    def wait_and_exit() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        end()

    def end() -> None:
        sys.setswitchinterval(_NO_SWITCH)  # the main thread must not create further batches
        core._cleanup_mmap_fds()  # type: ignore[attr-defined]
        _free_batches(os.getpid())
        os._exit(1)

    ignore_group_signals(end)  # first, because only threads that start later inherit the mask of signals
    Thread(target=wait_and_exit, daemon=True).start()


def end_workers(batches: Any) -> None:
    """Ends the workers of an iterator of ``paddle.io``, and frees the batches that it did not receive.

    Paddle misses batches that a worker moves to shared memory while it exits.
    """
    batches._try_shutdown_all()
    for worker in getattr(batches, "_workers", ()):  # missing in an iterator without workers
        _free_batches(worker.pid)


def _free_batches(worker: int) -> None:
    """Deletes the files in shared memory of a worker with this process id."""
    for file in _SHARED_MEMORY.glob(f"paddle_{worker}_*"):
        file.unlink(missing_ok=True)


class PaddleLoader(OrderedLoader):
    """Implements `ppcls.data.loaders.batch.Loader` with ``paddle.io.DataLoader``.

    Args:
        index: The samples.
        order: Order of the samples.
        ops: Chain of transforms.
        settings: Number of workers and use of shared memory.
        sizes: Sizes of the images if they change from step to step, else None.
        quarantine: Collects bad images, which the loader skips; None if the first bad image ends the run.
    """

    def __init__(
        self,
        index: Index,
        order: Order,
        ops: Sequence[Op],
        settings: PaddleSettings = PaddleSettings(),
        sizes: InputSize | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        super().__init__(index, order, quarantine)
        self._steps = _StepSampler(self._plan, sizes)
        self._images = _ImageDataset(index, ops, order.seed)
        self._loader = paddle.io.DataLoader(
            self._images,
            batch_sampler=self._steps,
            collate_fn=_stack,
            num_workers=settings.workers,
            use_shared_memory=settings.use_shared_memory and settings.workers > 0,
            return_list=True,
            worker_init_fn=exit_with_parent,
        )
        self._batches: Any = None
        self._ahead: Cursor | None = None  # position of the next batch of `_batches`
        self._shut_down: finalize[..., Any] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches from the current position to the end of the epoch."""
        self._read_ahead()
        epoch = self._cursor.epoch
        while self._cursor.epoch == epoch:
            yield self._advance(*self._without_bad(*self._take()))

    def _take(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Returns the batch at the current position, in which images may be bad.

        Workers load batches ahead, also those of the next epoch. If the position has changed, new workers
        replace them.

        Raises:
            UserError: The shared memory is full.
        """
        if self._ahead != self._cursor:
            self.release()
            self._steps.cursor = self._cursor
            if self._loader.num_workers:
                collect_before_fork()
            try:
                with group_signals_blocked():  # until the workers ignore them
                    self._batches = iter(self._loader)
            except OSError as error:  # also the queues of the workers are in shared memory
                if error.errno != errno.ENOSPC:
                    raise
                raise self._full_memory() from None
            self._shut_down = finalize(self, end_workers, self._batches)
        self._ahead = None  # after an error, the workers do not continue
        try:
            image, label = next(self._batches)
        except SystemError:  # Paddle's error for a worker that ended
            if not any(worker.exitcode == -signal.SIGBUS for worker in self._batches._workers):
                raise
            raise self._full_memory() from None
        self._ahead = self._cursor.next(len(self.order))
        return image, label

    def _full_memory(self) -> UserError:
        """Returns the error for batches that do not fit into the shared memory."""
        batch, _ = _stack([self._images[key] for key in self._steps.keys(self._cursor)])
        workers = self._loader.num_workers
        size = shutil.disk_usage(_SHARED_MEMORY).total
        return UserError(
            f"{_SHARED_MEMORY} is full: it has {size / 1e6:.3f} MB, and {counted(workers, 'worker')} of "
            f"paddle.io need at least {2 * workers * batch.nbytes / 1e6:.3f} MB for their batches; enlarge "
            "it (docker run "
            "--shm-size=8g), or decrease loader.num_workers or set loader.use_shared_memory=False, for "
            "DataLoader.Train and DataLoader.Eval"
        )

    def _without_bad(self, image: paddle.Tensor, label: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Returns a batch without bad images.

        Adds bad images to the quarantine, and loads their batch again in this process.
        """
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

    def first_batch_inputs(self) -> list[ChainInput]:
        """Returns the chain, encoded image and random numbers of each sample in a run's first batch."""
        return [self._images.chain_input(key) for key in self._steps.keys(Cursor())]

    def release(self) -> None:
        """Ends the workers. The next iteration starts new ones."""
        self._ahead = self._batches = None
        if self._shut_down is not None:
            self._shut_down()
