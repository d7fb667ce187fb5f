"""``--dry-run``: builds a run, trains a few updates, and estimates speed, memory and duration.

It measures training with the loader, training that repeats one batch, and the loader alone. During the
updates that repeat a batch, the loader prefetches batches. The prefetched batches are consumed before the
loader is timed, because they would make it look too fast.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import psutil

from ppcls.data.bad_images.lists import suggest_skipping
from ppcls.data.bad_images.quarantine import describe_skipped
from ppcls.data.build import Feed, dali_settings, describe_feed
from ppcls.data.images.header import DecodeError
from ppcls.data.images.read_header import read_header
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.batch import Batch, endless
from ppcls.data.loaders.dali.settings import has_memory_for_pipelines
from ppcls.data.read_speed import time_reading
from ppcls.data.section import Split
from ppcls.data.transforms.base import check_chain
from ppcls.data.transforms.specs.rng import permutation
from ppcls.engine.advice import DiskSpeed, LoadingSpeed, advise
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.cuda_graph.graphed_step import EAGER_UPDATES
from ppcls.engine.evaluation.evaluate import Evaluator
from ppcls.engine.loop import Run
from ppcls.engine.profiling.data_wait import build_data_wait
from ppcls.engine.profiling.peak_memory import explain_out_of_memory, peak_memory
from ppcls.engine.setup import build_run
from ppcls.errors import UserError, counted
from ppcls.files.urls import local_path
from ppcls.report.console import clock
from ppcls.runtime.collectives import all_reduce
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:
    from ppcls.recipe.schema import Config


@dataclass(frozen=True)
class UpdateCounts:
    """Numbers of updates of a dry run.

    Attributes:
        warm_up: Number of first updates, which are not measured.
        updates: Number of updates of each measurement.
        refill: Number of updates that are not measured after the loader was timed.
    """

    warm_up: int
    updates: int
    refill: int


@dataclass(frozen=True)
class DryRunFigures:
    """Measurements of a dry run. Numbers of images cover all ranks; times are those of the slowest rank.

    Attributes:
        fed: Seconds per update with the loader.
        waited: Seconds per update with the loader that are spent waiting for data.
        fed_images: Mean number of images per update with the loader.
        alone: Seconds per update that repeats one batch.
        alone_images: Number of images per update that repeats one batch.
        loader: Images per second of the loader without training.
        evaluation: Seconds per evaluation; None without evaluation.
        updates: Number of updates left in the run.
        full_updates: Number of batches left divided by the batches of a full update. It is less than
            ``updates`` if the last update of an epoch has fewer batches, or if SAM begins after the
            first epoch: updates without it count half.
        evaluations: Number of evaluations left in the run.
    """

    fed: float
    waited: float
    fed_images: float
    alone: float
    alone_images: float
    loader: float
    evaluation: float | None
    updates: int
    full_updates: float
    evaluations: int

    @property
    def seconds(self) -> float:
        """Estimated duration of the remaining run in seconds, without setup and checkpoints."""
        return self.training_seconds + self.evaluations * (self.evaluation or 0.0)

    @property
    def training_seconds(self) -> float:
        """Estimated duration of the remaining training in seconds, without evaluations."""
        # The prefetched batches can hide a slow loader, because only a few updates are measured.
        return self.full_updates * max(self.fed, self.fed_images / self.loader)


@dataclass(frozen=True)
class DryRun:
    """Result of a dry run.

    Attributes:
        text: Lines of text for the user.
        figures: Measurements.
        images: Number of training images.
        start: Seconds from the start of the process to the end of the first update.
        pretrained: Whether the run starts from pretrained weights.
    """

    text: str
    figures: DryRunFigures
    images: int
    start: float
    pretrained: bool

    def as_json(self) -> str:
        """Returns the most important numbers as a JSON object, for ``--figures``."""
        numbers = {
            "images": self.images,
            "training": self.figures.training_seconds,
            "evaluation": self.figures.evaluation or 0.0,
            "pretrained": self.pretrained,
            "start": self.start,
        }
        return json.dumps(numbers) + "\n"


def describe(measured: DryRunFigures) -> list[str]:
    """Returns the measurements as lines of text."""
    m = measured
    duration = f"{clock(m.seconds)} (h:mm:ss) for {counted(m.updates, 'update')}"
    if m.evaluation is not None:
        duration += f" and {counted(m.evaluations, 'evaluation')} of {_seconds(m.evaluation)}"
    return [
        f"speed         {_rate(m.fed_images / m.fed)}, with the loader: "
        f"{_seconds(m.fed)} per update of {m.fed_images:g} images",
        f"data wait     {m.waited / m.fed:.0%} of an update",
        f"training only {_rate(m.alone_images / m.alone)}, repeating one batch",
        f"loader only   {_rate(m.loader)}",
        f"whole run     {duration}; without checkpoints",
    ]


def _rate(images_per_second: float) -> str:
    return f"{images_per_second:.{0 if images_per_second >= 100 else 1}f} images/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


UPDATES = 3  # number of updates of each measurement
# Number of first updates, without and with CUDA graphs. They are not measured, because they build kernels and
# capture graphs.
WARM_UP = 2
WARM_UP_CAPTURE = EAGER_UPDATES + 2
_REFILL = 1  # updates that are not measured after the loader was timed, while it prefetches again
# An update that takes longer than this number of seconds on a CPU is slow: ResNet50 at 224 pixels needs 25 s
# for 64 images on two cores. A slow run measures one update at a time, or a dry run would take minutes. An
# empty queue of batches does not change such a time much. On a GPU, the first update is no measure: it
# compiles kernels and searches algorithms, which can take as long.
_SLOW_SECONDS = 5.0
# the loader is timed for at least this long and this many batches
_LOADER_SECONDS = 1.0
_LOADER_BATCHES = 3
# The disk is timed for at most this number of images and seconds.
_DISK_IMAGES = 512
_DISK_SECONDS = 1.0
_PICTURES = 32  # number of stored images whose size is read


def dry_run(config: Config, runtime: Runtime) -> DryRun:
    """Measures a run without writing its output files.

    Returns:
        The measurements and lines of text, equal on all ranks except for the memory and the start.

    Raises:
        UserError: Training would fail as well, for example because of a bad image or too little memory.
    """
    with (
        explain_out_of_memory(runtime, config.used_splits, config.Global, config.AMP),
        suggest_skipping(config.DataLoader.splits),
    ):
        # Updates with the second pass of SAM need the most memory.
        optimizer = config.Optimizer.model_copy(update={"sam_first_epoch": 1})
        worst = config.model_copy(update={"Optimizer": optimizer})
        run = build_run(worst, runtime, local_path(config.Global.output_dir))
        split = config.DataLoader.need_train()
        feed = describe_feed(split, runtime, config.Arch, use_dali=config.Global.use_dali)
        try:
            measured, counts, batches, started = _measure(
                run, feed.prefetched, config.Optimizer.sam_first_epoch
            )
            disk = _time_disk(run.state)
            lines = [
                *run.notes,
                f"dry run: {counted(counts.updates, 'update')} after {counts.warm_up} to warm up, "
                f"{counts.updates} that {'repeats' if counts.updates == 1 else 'repeat'} one batch, "
                f"{counted(batches, 'batch')} of the loader alone"
                + ("" if run.evaluator is None else ", and two batches of an evaluation"),
                *_short_epochs(run.state, counts.updates),
                *describe(measured),
                f"memory        peak: {peak_memory(runtime).describe()}",
                *([run.memory_report()] if run.memory_report is not None else []),
                *([f"disk          {disk.describe()}"] if disk is not None else []),
                f"advice        {advise(_loading_speed(split, feed, run.state, measured, disk))}",
                _describe_written(run),
                *_describe_conflict(run),
            ]
        finally:
            run.release()
        return DryRun("\n".join(lines) + "\n", measured, len(run.state.loader.index), started, run.pretrained)


def _measure(
    run: Run, prefetched: int, sam_first_epoch: int
) -> tuple[DryRunFigures, UpdateCounts, int, float]:
    """Measures a run.

    Args:
        prefetched: Number of batches that the loader prefetches.
        sam_first_epoch: First epoch of the real run whose batches have two passes, as the measured ones.

    Returns:
        The measurements, their counts, the number of batches for which the loader was timed, and the seconds
        from the start of the process to the end of the first update.
    """
    state = run.state
    settings = run.settings
    done = state.epoch
    order = state.loader.order
    left = settings.epochs - done
    updates = left * state.updates_per_epoch - state.updates_of_epoch
    batches_left = left * len(state.loader) - state.step
    if state.sam is not None:  # a batch with a single pass takes about half of the measured time
        single = min(left, max(0, sam_first_epoch - 1 - done))
        batches_left -= single * len(state.loader) // 2
    due = [settings.evaluates_after(epoch) for epoch in range(done + 1, settings.epochs + 1)]
    state.network.train()
    batches = endless(state.loader)
    # The start of the loader, which takes seconds, is no part of the time of the first update.
    batches = chain([next(batches)], batches)
    start = time.perf_counter()
    last = _feed(run, batches, 1)
    world = state.runtime.world_size
    first = float(all_reduce(np.array([time.perf_counter() - start]), world, maximum=True)[0])
    started = time.time() - psutil.Process().create_time()
    counts = _count_updates(run, first)
    if counts.warm_up > 1:
        last = _feed(run, batches, counts.warm_up - 1)
    alone = _repeat(run, last, counts.updates)
    alone_images = len(last.image) * order.world * order.accumulate
    del last  # frees its memory
    loader, timed = _time_loader(state.runtime, batches, prefetched)
    if counts.refill:
        _feed(run, batches, counts.refill)
    images, fed, waited = _time_fed(run, batches, counts.updates)
    times = all_reduce(np.array([fed, waited, alone]), world, maximum=True)
    fed, waited, alone = (times / counts.updates).tolist()
    images, loader = all_reduce(np.array([images, loader], np.float64), world).tolist()
    evaluation = None
    if run.evaluator is not None:
        seconds = np.array([_time_evaluation(state, run.evaluator, loader)])
        evaluation = float(all_reduce(seconds, world, maximum=True)[0])
    measured = DryRunFigures(
        fed=fed,
        waited=waited,
        alone=alone,
        fed_images=images / counts.updates,
        alone_images=alone_images,
        loader=loader,
        evaluation=evaluation,
        updates=max(0, updates),
        full_updates=max(0, batches_left) / order.accumulate,
        evaluations=sum(due),
    )
    return measured, counts, timed, started


def _updates(state: TrainState, count: int) -> Iterator[bool]:
    """Yields whether a batch ends an update, for each batch of the next ``count`` updates.

    All ranks yield the same values.
    """
    accumulate = state.loader.order.accumulate
    for number in range(1, count * accumulate + 1):
        yield number % accumulate == 0


def _count_updates(run: Run, first: float) -> UpdateCounts:
    """Returns how many updates to measure, after the first took ``first`` seconds on the slowest rank."""
    if run.step is not train_step:
        return UpdateCounts(WARM_UP_CAPTURE, UPDATES, _REFILL)
    if run.state.runtime.device == "cpu" and first > _SLOW_SECONDS:
        return UpdateCounts(warm_up=1, updates=1, refill=0)
    return UpdateCounts(WARM_UP, UPDATES, _REFILL)


def _train_batch(run: Run, batch: Batch, *, update: bool) -> None:
    """Trains on a batch as if all its rows were valid. Ranks may be at different positions in the epoch."""
    order = run.state.loader.order
    full = replace(batch, update=update, valid=len(batch.image), weight=1 / order.accumulate)
    run.step(run.state, full, NO_HOOKS)


def _feed(run: Run, batches: Iterator[Batch], count: int) -> Batch:
    """Trains ``count`` updates with the loader, and returns the last batch."""
    batch: Batch | None = None
    for update in _updates(run.state, count):
        batch = next(batches)
        _train_batch(run, batch, update=update)
    run.state.runtime.synchronize()
    assert batch is not None
    return batch


def _time_fed(run: Run, batches: Iterator[Batch], count: int) -> tuple[float, float, float]:
    """Times ``count`` updates with the loader on this rank.

    Returns:
        The number of images, the elapsed seconds, and the seconds spent waiting for data.
    """
    images = 0
    wait = build_data_wait(run.state.runtime)
    start = time.perf_counter()
    for update in _updates(run.state, count):
        with wait.waiting():
            batch = next(batches)
        _train_batch(run, batch, update=update)
        images += batch.valid
    run.state.runtime.synchronize()
    return images, time.perf_counter() - start, wait.seconds


def _repeat(run: Run, batch: Batch, count: int) -> float:
    """Returns the elapsed seconds of ``count`` updates that repeat one batch."""
    start = time.perf_counter()
    for update in _updates(run.state, count):
        _train_batch(run, batch, update=update)
    run.state.runtime.synchronize()
    return time.perf_counter() - start


def _time_loader(runtime: Runtime, batches: Iterator[Batch], prefetched: int) -> tuple[float, int]:
    """Times the loader of this rank without training.

    Returns:
        Images per second, and the number of timed batches.
    """
    for _ in islice(batches, prefetched):
        pass
    runtime.synchronize()
    images = 0
    timed = 0
    start = time.perf_counter()
    while timed < _LOADER_BATCHES or time.perf_counter() - start < _LOADER_SECONDS:
        images += next(batches).valid
        timed += 1
    runtime.synchronize()
    return images / (time.perf_counter() - start), timed


def _time_evaluation(state: TrainState, evaluator: Evaluator, loader: float) -> float:
    """Estimates the seconds of an evaluation from the times of two evaluations of one batch each.

    The first time includes the start of the loader. The second batch may be prefetched, so the speed of the
    training loader, ``loader`` in images per second, is an upper limit of the estimated speed.
    """
    loaders = evaluator.loaders.values()
    rest = sum(map(len, loaders)) - 1
    batches = chain.from_iterable(loaders)
    with state.ema.applied() if state.ema is not None else nullcontext():
        first: float = evaluator.evaluate(state.model, islice(batches, 1)).seconds
        one: float = evaluator.evaluate(state.model, islice(batches, 1)).seconds if rest else 0.0
    return first + rest * max(one, max(evaluated.order.global_batch for evaluated in loaders) / loader)


def _time_disk(state: TrainState) -> DiskSpeed | None:
    """Returns the speed of the disk, for at most a second of reading; None if the images are not on a disk.

    The files are removed from the page cache first. Otherwise, this would measure the memory.
    """
    runtime = state.runtime
    index = state.loader.index
    count = min(_DISK_IMAGES, len(index))
    positions = permutation(runtime.rank, 0, len(index))[:count].tolist()
    try:
        speed = time_reading(index, positions, runtime.cores, _DISK_SECONDS, cold=True)
        figures = [speed.images_per_second, speed.megabytes_per_second, float(speed.is_cold)]
        size = speed.size / max(1, speed.images) * len(index)
    except OSError:  # the images are not in files
        figures = [0.0, 0.0, 0.0]
        size = 0.0
    total = all_reduce(np.array(figures), runtime.world_size)
    if total[2] < runtime.world_size:
        return None
    return DiskSpeed(float(total[0]), float(total[1]), size < psutil.virtual_memory().available)


def _loading_speed(
    split: Split, feed: Feed, state: TrainState, measured: DryRunFigures, disk: DiskSpeed | None
) -> LoadingSpeed:
    runtime = state.runtime
    height, width = check_chain(split.dataset.transform_ops).size or (0, 0)
    settings = dali_settings(split, runtime, training=True)
    return LoadingSpeed(
        loader=measured.loader,
        step=measured.alone_images / measured.alone,
        waiting=measured.waited / measured.fed,
        by_dali=feed.uses_dali,
        dali_can=feed.dali_supported,
        on_gpu=runtime.device == "gpu",
        cores=runtime.cores,
        workers=split.loader.num_workers,
        threads=settings.threads,
        decoding=settings.decoding,
        can_share=has_memory_for_pipelines(runtime.card),
        dali=split.loader.dali,
        picture=_picture(split, state.loader.index),
        pixels_used=height * width,
        disk=disk,
    )


def _picture(split: Split, index: Index) -> float | None:
    """Returns the mean number of pixels of the stored images.

    Returns None if the data set stores arrays, or if no image can be read.
    """
    if not split.dataset.transform_ops[0].decodes_images:
        return None
    pixels = []
    for position in np.linspace(0, len(index) - 1, min(_PICTURES, len(index)), dtype=np.int64).tolist():
        try:
            header = read_header(index.read(position))
        except DecodeError:  # training skips this image, or reports it when it reads the image
            continue
        pixels.append(header.height * header.width)
    return float(np.mean(pixels)) if pixels else None


def _short_epochs(state: TrainState, measured: int) -> list[str]:
    """Returns one line if the updates of each measurement, ``measured``, are more than an epoch has."""
    updates = state.updates_per_epoch
    if updates >= measured:
        return []
    return [f"an epoch has only {counted(updates, 'update')}; several epochs were measured"]


def _describe_conflict(run: Run) -> list[str]:
    """Returns one line if training would fail because the output folder contains another run."""
    try:
        run.checkpoints.check_unused(run.resumed)
    except UserError as error:
        return [f"training would fail: {error}"]
    return []


def _describe_written(run: Run) -> str:
    """Returns a line about the files that the dry run wrote: at most a list of bad images."""
    skipped = describe_skipped(loader.quarantine for loader in run.loaders.values())
    return "nothing was written" if skipped is None else f"{skipped}; nothing else was written"
