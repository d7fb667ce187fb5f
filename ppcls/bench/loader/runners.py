"""Runs each backend of the loader benchmark, and times its batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]

from ppcls.bench.loader.bare import bare_pipeline
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate, Key, MeasurementFailed, Sample
from ppcls.bench.measure.usage import UsageMeter
from ppcls.config.sections.transform import MixupOperator
from ppcls.data.bad_images.search import error_reason
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader
from ppcls.data.loaders.dali.reader import build_reader, shut_down
from ppcls.data.loaders.mixing import MixedLoader
from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings, collect_before_fork, exit_with_parent
from ppcls.data.sampling.order import Cursor, Order

Counts = Generator[int, None, None]  # number of images of each batch
MIN_BATCHES = 4  # counted batches
_REASON_LENGTH = 300  # characters
_PAGE = 4096  # bytes


@dataclass(frozen=True)
class BatchTimer:
    """Times batches.

    Attributes:
        seconds: Minimum seconds that are counted.
        meter: Meter of the machine's load.
        finish: Waits for work under way on the device.
        clock: Clock in seconds.
    """

    seconds: float
    meter: UsageMeter
    finish: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter

    def time(self, batches: Iterator[int], skipped: int) -> Sample:
        """Times batches after the first ``skipped`` ones, until they end or the time is over.

        Raises:
            ValueError: There are no further batches.
        """
        for _ in range(skipped):
            next(batches, None)
        self.finish()
        self.meter.start()
        began, images = self.clock(), 0
        try:
            for number, count in enumerate(batches, start=1):
                images += count
                if number >= MIN_BATCHES and self.clock() - began >= self.seconds:
                    break
            self.finish()
            seconds = self.clock() - began
        finally:
            usage = self.meter.stop()
        if not images:
            raise ValueError(f"no batches after the first {skipped}")
        return {"images_per_second": images / seconds, "images": images, "usage": usage}


def make_timer(workload: LoaderWorkload, seconds: float) -> BatchTimer:
    """Returns a timer for the workload's device."""
    finish = paddle.device.synchronize if workload.on_gpu else lambda: None
    return BatchTimer(seconds, UsageMeter(workload.card), finish)


def batch_candidate(
    key: Key, name: str, open_batches: Callable[[], Counts], timer: BatchTimer, skipped: int
) -> Candidate[Key]:
    """Returns a candidate that opens a stream of batches and times it.

    Args:
        key: Identity of the candidate.
        name: Name for people.
        open_batches: Starts the stream.
        timer: Timer.
        skipped: Batches before the clock starts.
    """

    def measure() -> Sample:
        try:
            with closing(open_batches()) as batches:
                return timer.time(batches, skipped)
        except (RuntimeError, MemoryError, SystemError) as error:  # of DALI and Paddle
            reason = error_reason(str(error))[:_REASON_LENGTH] or type(error).__name__
            raise MeasurementFailed(reason) from None

    return Candidate(key, name, measure)


def load_batches(setting: LoaderSetting, workload: LoaderWorkload) -> Counts:
    """Yields the images of each batch, endlessly.

    Raises:
        UserError: An image cannot be read, or a transform is not supported by this backend.
    """
    order = workload.order(mixup=setting.mixup)
    match setting.backend:
        case "read only":
            with ThreadPoolExecutor(setting.workers) as pool:
                for positions in _positions(order):
                    yield sum(1 for _ in pool.map(workload.index.read, positions))
        case "bare DALI":
            settings = workload.dali_settings(setting.workers, setting.prefetch)
            pipeline = bare_pipeline(setting.chain, workload, settings)
            yield from run_pipeline(pipeline)
        case "paddle.io":
            yield from _load_by_paddle(setting, workload, order)
        case _:
            yield from _load_by_dali(setting, workload, order)


def _positions(order: Order) -> Iterator[list[int]]:
    """Yields the positions of each batch."""
    for epoch in itertools.count():
        for step in range(len(order)):
            yield order.at(Cursor(epoch, step)).indices.tolist()


def _iterate(loader: Loader, workload: LoaderWorkload) -> Counts:
    while True:
        for batch in loader:
            if workload.on_gpu and not batch.image.place.is_gpu_place():
                batch.image.cuda()
            yield batch.valid


def run_pipeline(pipeline: Pipeline, *, touch: bool = False) -> Counts:
    """Builds a pipeline, yields the images of each batch endlessly, and releases the pipeline.

    Args:
        pipeline: Pipeline that is not yet built.
        touch: Whether to read a byte of each memory page, because mapped files are read only then.
    """
    pipeline.build()
    try:
        while True:
            output = pipeline.run()[0]
            yield _touch_pages(output) if touch else len(output)
    finally:
        release(pipeline)


def release(pipeline: Pipeline) -> None:
    """Shuts a pipeline down and releases its memory."""
    shut_down(pipeline)
    ReleaseUnusedMemory()


def _touch_pages(images: Any) -> int:
    for row in range(len(images)):
        np.asarray(images[row])[::_PAGE].max()
    return len(images)


def _load_by_dali(setting: LoaderSetting, workload: LoaderWorkload, order: Order) -> Counts:
    device = workload if setting.backend == "DALI GPU" else workload.on_cpu
    settings = device.dali_settings(setting.workers, setting.prefetch, **setting.dali)
    if setting.chain == "read":
        with ThreadPoolExecutor(settings.threads) as pool:
            reader = build_reader(workload.index, order, settings, workload.ops[0].spec, pool)
            try:
                while True:
                    yield _touch_pages(reader.read().files)
            finally:
                reader.close()
        return
    dali = DaliLoader(workload.index, order, workload.ops, settings)
    loader: Loader = dali
    if setting.mixup:
        classes = workload.config.Arch.class_num
        loader = MixedLoader(dali, MixupOperator(alpha=0.2), classes, workload.layout)
    try:
        yield from _iterate(loader, workload)
    finally:
        loader.release()


def _load_by_paddle(setting: LoaderSetting, workload: LoaderWorkload, order: Order) -> Counts:
    if setting.chain == "read":
        positions = _positions(order)
        yield from map_in_workers(partial(_encoded_size, workload), positions, setting.workers)
        return
    settings = PaddleSettings(setting.workers, workload.split.loader.use_shared_memory)
    loader = PaddleLoader(workload.index, order, workload.ops, settings)
    yield from _iterate(loader, workload)


def _encoded_size(workload: LoaderWorkload, position: int) -> NDArray[Any]:
    """Reads an image and returns only its size, so that handing it over costs nothing."""
    return np.asarray([len(workload.index.read(position))])


class _MappedPositions(paddle.io.Dataset):  # type: ignore[misc]
    """A function's result at each position."""

    def __init__(self, function: Callable[[int], NDArray[Any]]) -> None:
        super().__init__()
        self._function = function

    def __getitem__(self, position: int) -> NDArray[Any]:
        return self._function(position)

    def __len__(self) -> int:
        return 1 << 40  # practically endless


class _PositionBatches(paddle.io.BatchSampler):  # type: ignore[misc]
    def __init__(self, positions: Iterator[list[int]]) -> None:
        self._positions = positions

    def __iter__(self) -> Iterator[list[int]]:
        return self._positions

    def __len__(self) -> int:
        return 1 << 40


def map_in_workers(
    function: Callable[[int], NDArray[Any]], positions: Iterator[list[int]], workers: int
) -> Counts:
    """Applies a function to positions in paddle.io's workers, and yields the images of each batch.

    Args:
        function: Maps a position to an array; all arrays have the same shape.
        positions: Positions of each batch.
        workers: Number of processes; 0 for this one.
    """
    loader = paddle.io.DataLoader(
        _MappedPositions(function),
        batch_sampler=_PositionBatches(positions),
        collate_fn=_stack,
        num_workers=workers,
        use_shared_memory=workers > 0,
        return_list=True,
        worker_init_fn=exit_with_parent,
    )
    if workers:
        collect_before_fork()
    batches = iter(loader)
    try:
        for (batch,) in batches:
            yield int(batch.shape[0])
    finally:
        batches._try_shutdown_all()  # otherwise workers would outlive an iteration that is broken off


def _stack(rows: Sequence[NDArray[Any]]) -> tuple[NDArray[Any]]:
    return (np.stack(rows),)
