"""Runs each backend of the loader benchmark, completely or up to a stage, and times its batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from nvidia.dali import Pipeline
from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]

from ppcls.bench.loader.bare import bare_pipeline, check_bare
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import RATE, Candidate
from ppcls.bench.measure.usage import UsageMeter
from ppcls.bench.results.schema import Label
from ppcls.data.bad_images.search import error_reason
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.loader import DaliLoader, PipelineInput
from ppcls.data.loaders.dali.reader import build_reader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.loaders.mixing import MixedLoader
from ppcls.data.loaders.paddle import (
    PaddleLoader,
    PaddleSettings,
    collect_before_fork,
    end_workers,
    exit_with_parent,
)
from ppcls.data.sampling.order import Order
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms.batch import MixupOperator
from ppcls.data.transforms.dali_ops.internals import shut_down
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import Op
from ppcls.engine.autotune.processes import MeasurementFailed, Sample
from ppcls.errors import UserError

Counts = Generator[int, None, None]  # number of images of each batch
Loaders = list[Candidate[LoaderSetting]]
MIN_BATCHES = 4  # minimum number of timed batches
_REASON_LENGTH = 300  # characters
_PAGE = 4096  # bytes


@dataclass(frozen=True)
class BatchTimer:
    """Times batches.

    Attributes:
        seconds: Minimum duration of a measurement in seconds.
        meter: Measures the load of the machine.
        finish: Waits until the device has finished its work.
        clock: Returns the time in seconds.
    """

    seconds: float
    meter: UsageMeter
    finish: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter

    def time(self, batches: Iterator[int], skipped: int) -> Sample:
        """Skips the first batches, and times the following ones until they end or `seconds` have passed.

        Raises:
            ValueError: There are no batches after the skipped ones.
        """
        for _ in range(skipped):
            next(batches, None)
        self.finish()
        self.meter.start()
        began = self.clock()
        images = 0
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
        return {RATE: images / seconds, "cpu_per_image": usage.pop("cpu_seconds") / images, **usage}


def make_timer(workload: LoaderWorkload, seconds: float) -> BatchTimer:
    """Returns a timer for the workload's device."""
    finish = paddle.device.synchronize if workload.on_gpu else lambda: None
    return BatchTimer(seconds, UsageMeter(workload.card), finish)


def loader_candidate(
    setting: LoaderSetting,
    workload: LoaderWorkload,
    timer: BatchTimer,
    name: str = "",
    labels: Mapping[str, Label] | None = None,
) -> Candidate[LoaderSetting]:
    """Returns a candidate that measures the loading of images with a setting."""

    def measure() -> Sample:
        try:
            _check_supported(setting, workload)
        except UserError as error:
            raise MeasurementFailed(str(error)) from None
        try:
            with closing(load_batches(setting, workload)) as batches:
                sample = timer.time(batches, setting.skipped_batches)
        except (RuntimeError, MemoryError, SystemError) as error:  # of DALI and Paddle
            reason = error_reason(str(error))[:_REASON_LENGTH] or type(error).__name__
            raise MeasurementFailed(reason) from None
        return {**sample, "megabytes_per_second": sample[RATE] * workload.image_bytes / 1e6}

    labels = setting.labels() if labels is None else labels
    return Candidate(setting, name or setting.describe(), measure, dict(labels))


def _check_supported(setting: LoaderSetting, workload: LoaderWorkload) -> None:
    if setting.backend == "bare DALI":
        check_bare(workload)
    elif setting.backend == "paddle.io":
        check_numpy(workload.ops, "transform_ops")
    else:
        check_dali(workload.ops, "transform_ops", workload.dali_settings(setting))


def load_batches(setting: LoaderSetting, workload: LoaderWorkload) -> Counts:
    """Yields the number of images of each batch, without end.

    Raises:
        UserError: An image cannot be read, or a transform is not supported by this backend.
    """
    order = workload.order(mixup=setting.mixup)
    if setting.backend == "bare DALI":
        only_read = setting.stage == "disk"
        pipeline = bare_pipeline(workload, workload.dali_settings(setting), bytes_only=only_read)
        return _run_pipelines([pipeline], touch=only_read)
    if setting.backend == "paddle.io":
        return _load_by_paddle(setting, workload, order)
    return _load_by_dali(setting, workload, order)


def _iterate(loader: Loader, workload: LoaderWorkload) -> Counts:
    try:
        while True:
            for batch in loader:
                if workload.on_gpu and not batch.image.place.is_gpu_place():
                    batch.image.cuda()
                yield batch.valid
    finally:
        loader.release()


def _run_pipelines(
    pipelines: Sequence[Pipeline], inputs: Sequence[PipelineInput] = (), *, touch: bool = False
) -> Counts:
    """Runs pipelines in turn, without passing images to Paddle. Yields the number of images of each batch.

    Args:
        pipelines: Pipelines that are not built yet.
        inputs: External sources of the pipelines; empty if they read files themselves.
        touch: Whether to read one byte per memory page. Otherwise, memory-mapped files would not be read.
    """
    try:
        for pipeline in pipelines:
            pipeline.build()
        for number in itertools.count():
            turn = number % len(pipelines)
            output = pipelines[turn].run()[0]
            yield _touch_pages(output) if touch else len(output)
            if inputs:
                inputs[turn].pop()
    finally:
        for pipeline in pipelines:
            shut_down(pipeline)
        for source in inputs:
            source.close()
        ReleaseUnusedMemory()


def _touch_pages(images: Any) -> int:
    for row in range(len(images)):
        np.asarray(images[row])[::_PAGE].max()
    return len(images)


def _load_by_dali(setting: LoaderSetting, workload: LoaderWorkload, order: Order) -> Counts:
    settings = workload.dali_settings(setting)
    if setting.stage == "disk":
        return _read_by_dali(workload, order, settings)
    workload = workload.with_cache(settings)
    ops = workload.ops
    if setting.stage == "decode":
        ops = _decoding(ops, settings)
    loader = DaliLoader(workload.index, order, ops, settings)
    if setting.stage != "hand-over":
        with settings.on_cores():
            graphs = [loader.graph(number) for number in range(settings.pipelines)]
        return _run_pipelines([graph.pipeline for graph in graphs], [graph.input for graph in graphs])
    if setting.mixup:
        classes = workload.arch.class_num
        mixed = MixedLoader(loader, MixupOperator(alpha=0.2), classes, workload.layout)
        return _iterate(mixed, workload)
    return _iterate(loader, workload)


def _read_by_dali(workload: LoaderWorkload, order: Order, settings: DaliSettings) -> Counts:
    with ThreadPoolExecutor(settings.threads) as pool:
        reader = build_reader(workload.index, order, settings, workload.ops[0].spec, pool)
        try:
            while True:
                yield _touch_pages(reader.read().files)
        finally:
            reader.close()


def _decoding(ops: tuple[Op, ...], settings: DaliSettings) -> tuple[Op, ...]:
    """Returns the ops that decode as the config does: the whole image, or only the window of a random crop.

    The window is resized to a single pixel, so that resizing adds almost no time to decoding.
    """
    decode, crop, *_ = ops
    window = crop.spec.resized(1)
    if window is None or not settings.decode_window or not crop.spec.uses_window:
        return (decode,)
    return (decode, replace(crop, spec=window))


def _load_by_paddle(setting: LoaderSetting, workload: LoaderWorkload, order: Order) -> Counts:
    if setting.stage != "disk":
        workload = workload.with_cache(None)
    ops = workload.ops
    if setting.stage == "hand-over":
        settings = PaddleSettings(setting.workers, workload.split.loader.use_shared_memory)
        return _iterate(PaddleLoader(workload.index, order, ops, settings), workload)
    parts: dict[str, tuple[Op, ...]] = {"disk": (), "decode": ops[:1]}
    sizes = paddle.io.DataLoader(
        _ImageSizes(workload, parts.get(setting.stage, ops)),
        batch_size=workload.batch_size,
        num_workers=setting.workers,
        use_shared_memory=setting.workers > 0,
        return_list=True,
        worker_init_fn=exit_with_parent,
    )
    return _count_rows(sizes, setting.workers)


class _ImageSizes(paddle.io.Dataset):  # type: ignore[misc]
    """Data set that prepares images up to a stage, and returns only their sizes to avoid the transfer."""

    def __init__(self, workload: LoaderWorkload, ops: tuple[Op, ...]) -> None:
        super().__init__()
        self._workload = workload
        self._ops = ops

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        positions = self._workload.positions
        position = int(positions[number % len(positions)])
        encoded = self._workload.index.read(position)
        if not self._ops:
            return np.asarray([len(encoded)])
        return np.asarray([run(self._ops, encoded, self._workload.draws(position)).size])

    def __len__(self) -> int:
        return 1 << 40  # practically endless


def _count_rows(loader: paddle.io.DataLoader, workers: int) -> Counts:
    if workers:
        collect_before_fork()
    batches = iter(loader)
    try:
        for batch in batches:
            yield int(batch.shape[0])
    finally:
        end_workers(batches)  # otherwise workers would keep running
