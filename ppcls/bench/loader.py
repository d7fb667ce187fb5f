"""How fast loaders are on this machine: ours against a bare DALI pipeline and against paddle.io.

All take turns, round by round, so that a machine that slows down slows all of them; what counts is the
ratio within a round. In each turn the clock starts after some batches: what was made ahead before the turn
is used up by then, workers are up, and what the one before still made ahead is done.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from nvidia.dali import Pipeline, fn, types

from ppcls.config.mixing import MixupOperator
from ppcls.config.schema import Config
from ppcls.config.sections import Split
from ppcls.config.transform import Layout
from ppcls.data.batch import Loader
from ppcls.data.build import build_loader
from ppcls.data.dali_settings import resolve
from ppcls.data.file_index import FileIndex
from ppcls.data.index import Index, read_index
from ppcls.data.transforms import DecodeImage, NormalizeImage, RandCropImage, RandFlipImage
from ppcls.errors import UserError
from ppcls.runtime import Runtime

Epoch = Callable[[], Iterator[int]]  # runs one epoch, yields the images of each batch
Read = Callable[[], Any]  # makes a reader's two nodes in a graph under construction: images, labels
_NOT_COUNTED = 8  # batches before the clock starts


@dataclass(frozen=True)
class Speed:
    """What one contender did.

    Attributes:
        name: Of the contender.
        rates: Images a second, one per round.
        ratios: Rate over the first contender's in the same round.
    """

    name: str
    rates: tuple[float, ...]
    ratios: tuple[float, ...]

    def describe(self) -> str:
        """Returns one line: median and range of the rates, median and range of the ratios."""
        low, high = min(self.ratios), max(self.ratios)
        return (
            f"{self.name:<28} {statistics.median(self.rates):7.0f} img/s "
            f"({min(self.rates):.0f} to {max(self.rates):.0f}), "
            f"ratio {statistics.median(self.ratios):.2f} ({low:.2f} to {high:.2f})"
        )


def rate(epoch: Epoch, clock: Callable[[], float], finish: Callable[[], None]) -> float:
    """Returns the images a second of one epoch, without its first batches.

    Args:
        epoch: What is timed; of more than eight batches.
        clock: Seconds.
        finish: Waits for work that is still under way.
    """
    images, began = 0, 0.0
    for number, count in enumerate(epoch(), start=1):
        if number > _NOT_COUNTED:
            images += count
        elif number == _NOT_COUNTED:
            finish()
            began = clock()
    finish()
    return images / (clock() - began)


def compare(
    contenders: dict[str, Epoch], rounds: int, clock: Callable[[], float], finish: Callable[[], None]
) -> list[Speed]:
    """Runs an epoch of each contender in turn, ``rounds`` times, after one that is not counted.

    Args:
        contenders: By name; the first is what ratios refer to.
        rounds: Counted rounds.
        clock: Seconds.
        finish: Waits for work that is still under way.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for counted in range(-1, rounds):
        for name, epoch in contenders.items():
            found = rate(epoch, clock, finish)
            if counted >= 0:
                rates[name].append(found)
    base = next(iter(rates.values()))
    return [
        Speed(name, tuple(each), tuple(rate / other for rate, other in zip(each, base, strict=True)))
        for name, each in rates.items()
    ]


def through(loader: Loader) -> Epoch:
    """Returns the epoch of a loader."""

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield batch.valid

    return epoch


def bare(pipeline: Pipeline, steps: int, batch_size: int) -> Epoch:
    """Returns the epoch of a pipeline that is not built yet."""
    pipeline.build()

    def epoch() -> Iterator[int]:
        for _ in range(steps):
            for output in pipeline.run():
                output.as_tensor()
            yield batch_size

    return epoch


def read_files(index: Index, *, shuffled: bool) -> Read:
    """Returns how DALI reads image files: in their order, or shuffled as a tutorial would.

    Raises:
        UserError: The images are no files.
    """
    if not isinstance(index, FileIndex):
        raise UserError(f"{index.source}: the bare pipeline is written for image files, listed or in folders")
    return lambda: fn.readers.file(
        files=[index.path(i).decode() for i in range(len(index))],
        labels=index.labels.tolist(),
        random_shuffle=shuffled,
        initial_fill=min(len(index), 1024),
    )


def bare_pipeline(read: Read, split: Split, runtime: Runtime, layout: str) -> Pipeline:
    """Writes by hand what a DALI tutorial would: its own reader, its own random numbers.

    Args:
        read: Makes the reader's nodes: encoded images and labels.
        split: Whose chain is written.
        runtime: Device and cores.
        layout: Of the images, as the model takes them.

    Raises:
        UserError: The chain is not decode, random crop, flip, normalize.
    """
    match split.dataset.transform_ops[:4]:
        case (DecodeImage(), RandCropImage() as crop, RandFlipImage(), NormalizeImage() as normalize):
            pass
        case _:
            raise UserError(
                "the bare pipeline is written for DecodeImage, RandCropImage, RandFlipImage, NormalizeImage; "
                "DataLoader.Train has another chain"
            )
    gpu = runtime.device_id is not None
    dali = resolve(split.loader.dali, runtime)
    pipeline = Pipeline(
        batch_size=split.sampler.rows(runtime.world),
        num_threads=dali.threads,
        device_id=runtime.device_id,
        prefetch_queue_depth=dali.prefetch,
        exec_dynamic=True,
        seed=1,
    )
    with pipeline:
        encoded, label = read()
        image = fn.decoders.image_random_crop(
            encoded,
            device="mixed" if gpu else "cpu",
            random_area=list(crop.scale),
            random_aspect_ratio=list(crop.ratio),
        )
        image = fn.resize(image, resize_x=crop.size[0], resize_y=crop.size[1], antialias=crop.antialias)
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout=layout,
            mean=[value / normalize.scale for value in normalize.mean],
            std=[value / normalize.scale for value in normalize.std],
            mirror=fn.random.coin_flip(),
        )
        pipeline.set_outputs(image, label.gpu() if gpu else label)
    return pipeline


def _with(
    config: Config, split: Split, *, use_dali: bool, workers: int | None = None, mixup: bool = False
) -> tuple[Config, Split]:
    changed = config.model_copy(update={"Global": config.Global.model_copy(update={"use_dali": use_dali})})
    if workers is not None:
        loader = split.loader.model_copy(update={"num_workers": workers})
        split = split.model_copy(update={"loader": loader})
    if mixup:
        dataset = split.dataset.model_copy(update={"batch_transform_ops": (MixupOperator(alpha=0.2),)})
        split = split.model_copy(update={"dataset": dataset})
    return changed, split


def train_split(config: Config, runtime: Runtime) -> tuple[Split, Index, int]:
    """Returns ``DataLoader.Train``, its samples, and how many whole batches they make.

    Raises:
        UserError: There is none, its data can't be used, or the batches are too few to time.
    """
    split = config.DataLoader.Train
    if split is None:
        raise UserError("the benchmark needs DataLoader.Train in the config")
    index = read_index(split.dataset, config.Arch.class_num)
    batch_size = split.sampler.rows(runtime.world)
    steps = len(index) // batch_size
    if steps <= 2 * _NOT_COUNTED:
        raise UserError(
            f"{index.source}: {steps} batches of {batch_size} are too few to time; "
            f"expected more than {2 * _NOT_COUNTED}"
        )
    return split, index, steps


def layout_of(config: Config) -> Layout:
    """Returns the layout of images as the model takes them."""
    return "CHW" if config.Arch.data_format == "NCHW" else "HWC"


def finisher(runtime: Runtime) -> Callable[[], None]:
    """Returns what waits for the device."""
    return paddle.device.synchronize if runtime.device_id is not None else _nothing


def benchmark_loaders(
    config: Config, runtime: Runtime, workers: Sequence[int], rounds: int, *, mixup: bool = False
) -> list[Speed]:
    """Times DataLoader.Train under a bare DALI pipeline, our DALI loader and our paddle.io loader.

    Args:
        config: Its chain is to be decode, random crop, flip, normalize.
        runtime: Device and cores.
        workers: Worker processes of paddle.io to try.
        rounds: Counted epochs of each.
        mixup: Time our DALI loader with Mixup too; ``batch_size`` must be even.

    Raises:
        UserError: The data can't be used, or the chain is another.
    """
    split, index, steps = train_split(config, runtime)
    layout, batch_size = layout_of(config), split.sampler.rows(runtime.world)
    by_hand = bare_pipeline(read_files(index, shuffled=True), split, runtime, layout)
    contenders: dict[str, Epoch] = {"bare DALI pipeline": bare(by_hand, steps, batch_size)}

    def add(name: str, **how: Any) -> None:
        contenders[name] = through(build_loader(*_with(config, split, **how), runtime, training=True))

    add("ppcls, DALI", use_dali=True)
    if mixup:
        add("ppcls, DALI + Mixup", use_dali=True, mixup=True)
    for count in workers:
        add(f"ppcls, paddle.io, {count} workers", use_dali=False, workers=count)
    return compare(contenders, rounds, time.perf_counter, finisher(runtime))


def _nothing() -> None:
    """On a CPU a batch that arrived is done."""
