"""From a split of the config to its loader: the only place that chooses one by ``use_dali``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.config.schema import Config
from ppcls.config.sections.dataset import Dataset
from ppcls.config.sections.loader import Dali, Split
from ppcls.config.sections.sampler import EqualPixels, SamplerSpec
from ppcls.config.sections.transform import Layout, check_chain
from ppcls.data.bad_images.quarantine import BAD_IMAGES, Quarantine, RejectedImages
from ppcls.data.index.read import Index, read_index
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.settings import DaliSettings, resolve
from ppcls.data.sampling.build import build_sampler
from ppcls.data.sampling.input_size import EqualPixelsOrder
from ppcls.data.sampling.order import Order
from ppcls.data.sampling.sampler import SequentialSampler
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms.specs import Op, plan_chain
from ppcls.errors import UserError
from ppcls.runtime.memory import estimate_pipeline_memory
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:  # DALI need not be there to train without it
    from ppcls.data.loaders.dali.loader import DaliLoader

_READ_AHEAD = 3  # batches that a pipeline's reader, and what feeds it, hold beside the finished ones


def build_loader(config: Config, split: Split, runtime: Runtime, *, training: bool) -> Loader:
    """Builds the loader of one split for this rank.

    Args:
        config: The whole config.
        split: ``DataLoader.Train``, or what is evaluated on.
        runtime: Rank, world, device and cores.
        training: Whether batches train: then the sampler says which samples make an epoch, and a global
            batch larger than that is an error. Evaluation takes each sample once, in order.

    Raises:
        UserError: The dataset can't be read, is empty, has wrong lines, or is smaller than a batch; or the
            sampler can't work on it; or a transform has no form for the loader and the device.
    """
    index = read_index(split.dataset, config.class_count(training=training))
    spec = split.sampler
    mixing = split.dataset.batch_transform_ops if training else ()
    group = math.lcm(spec.group, 2 if mixing else 1) if training else 1
    sizes = spec.input_size
    kind = Order if sizes is None else partial(EqualPixelsOrder, sizes=sizes.grouped(group))
    order = kind(
        sampler=build_sampler(spec, index, runtime.world_size) if training else SequentialSampler(len(index)),
        batch_size=spec.rows(runtime.world_size, group),
        seed=config.Global.seed,
        rank=runtime.rank,
        world=runtime.world_size,
        drop_last=spec.drop_last and training,
        accumulate=config.Global.update_freq if training else 1,
        group=group,
        global_batch_size=spec.fixed_global_batch,
    )
    if training and order.global_batch > order.size:
        _refuse_small(index, order, spec)
    layout: Layout = "CHW" if config.Arch.data_format == "NCHW" else "HWC"
    ops = plan_chain(split.dataset.transform_ops, layout)
    evaluated = (place for place, each in config.DataLoader.evaluated.items() if each is split)
    chain = f"DataLoader.{'Train' if training else next(evaluated, 'Eval')}.dataset.transform_ops"
    quarantine = _quarantine(config, split.dataset, index)
    loader = _reader(config, split, runtime, index, order, ops, chain, quarantine)
    if not mixing:
        return loader
    from ppcls.data.loaders.mixed import MixedLoader

    return MixedLoader(loader, mixing[0], config.Arch.class_num, layout)


def _reader(
    config: Config,
    split: Split,
    runtime: Runtime,
    index: Index,
    order: Order,
    ops: tuple[Op, ...],
    chain: str,
    quarantine: Quarantine | None,
) -> Loader:
    """Builds the loader that reads the images; ``chain`` is where the YAML has ``ops``."""
    if not config.Global.use_dali:
        check_numpy(ops, chain)
        from ppcls.data.loaders.paddle import PaddleLoader

        loader = split.loader
        return PaddleLoader(
            index,
            order,
            ops,
            loader.num_workers,
            loader.use_shared_memory,
            sizes=split.sizes,
            quarantine=quarantine,
        )
    settings = resolve(split.loader.dali, runtime)
    if settings.device_id is None:
        _refuse_gpu_settings(split.loader.dali, f"{chain.removesuffix('.dataset.transform_ops')}.loader.dali")
    check_dali(ops, chain, settings)
    from ppcls.data.loaders.dali.loader import DaliLoader

    return DaliLoader(index, order, ops, settings, split.sizes, quarantine)


def _refuse_gpu_settings(dali: Dali, place: str) -> None:
    """Shows what was asked for that a run on the CPU can't do."""
    if dali.decode_on == "gpu":
        raise UserError(f"{place}.decode_on: gpu, but this run is on the CPU; set it to auto")
    if dali.cache_size:
        raise UserError(
            f"{place}.cache_size: only the GPU's decoder caches, and this run is on the CPU; set it to 0"
        )


def build_file_loader(
    rejected: RejectedImages, ops: tuple[Op, ...], batch_size: int, settings: DaliSettings
) -> DaliLoader:
    """Builds a loader of DALI's that takes each image of an index once, in order, to predict it.

    Args:
        rejected: Takes the images that are bad, of its index.
        ops: The chain.
        batch_size: Rows of a batch.
        settings: Of DALI.

    Raises:
        UserError: DALI can't do a transform on this device.
    """
    check_dali(ops, "Infer.transforms", settings)
    from ppcls.data.loaders.dali.loader import DaliLoader

    order = Order(SequentialSampler(len(rejected.index)), batch_size=batch_size)
    return DaliLoader(rejected.index, order, ops, settings, quarantine=rejected)


def _quarantine(config: Config, dataset: Dataset, index: Index) -> Quarantine | None:
    """Returns what keeps the split's bad images, known ones included; None where they end the run."""
    if dataset.on_error == "raise":
        return None
    file = Path(config.Global.output_dir) / BAD_IMAGES
    quarantine = Quarantine(index, file, dataset.max_errors)
    lists = [file]
    if dataset.bad_images is not None:
        lists.append(Path(dataset.bad_images))
        if not lists[-1].is_file():
            raise UserError(f"{lists[-1]}: no such list of bad images; `tools/dataset.py check` writes one")
    quarantine.recall(lists, dataset.transform_ops[0])
    return quarantine


@dataclass(frozen=True)
class Feed:
    """Who feeds a split.

    Attributes:
        by_dali: Whether DALI does; else paddle.io.
        dali_can: Whether DALI does, or has a form of every transform on this device.
        ahead: The most batches that may be made before they are asked for.
    """

    by_dali: bool
    dali_can: bool
    ahead: int


def describe_feed(config: Config, split: Split, runtime: Runtime) -> Feed:
    """Returns who feeds a training split, without building it."""
    settings = resolve(split.loader.dali, runtime)
    if config.Global.use_dali:
        return Feed(True, True, settings.pipelines * (settings.of_each().prefetch + _READ_AHEAD))
    layout: Layout = "CHW" if config.Arch.data_format == "NCHW" else "HWC"
    try:
        check_dali(plan_chain(split.dataset.transform_ops, layout), "", settings)
    except UserError:
        return Feed(False, False, 2 * split.loader.num_workers)
    return Feed(False, True, 2 * split.loader.num_workers)  # so much paddle.io asks of its workers


def gpu_memory_need(config: Config, split: Split, runtime: Runtime) -> int:
    """Estimates the GPU memory of the split's loader, beside Paddle's, in MiB: 0 but for DALI on a GPU."""
    if not config.Global.use_dali or runtime.device_id is None:
        return 0
    state = check_chain(split.dataset.transform_ops)
    assert state.size is not None  # by check_chain
    dali = resolve(split.loader.dali, runtime)
    given = {"itemsize": 2} if state.dtype == "float16" else {}
    if "device_memory_padding" in dali.decoder:
        given["padding"] = dali.decoder["device_memory_padding"]
    largest = max(
        estimate_pipeline_memory(rows, dali.prefetch, (state.channels, height, width), dali.threads, **given)
        for rows, height, width in _batches(split, runtime.world_size, state.size)
    )
    return largest + int(dali.decoder.get("cache_size", 0))


def _batches(split: Split, world: int, size: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Returns images a process, height and width of the largest batch, or of one of each size."""
    sizes, (height, width) = split.sizes, size
    if isinstance(sizes, EqualPixels):
        return [(rows, side, side) for side, rows in zip(sizes.sizes, sizes.rows, strict=True)]
    largest = 0 if sizes is None else max(sizes.sizes)
    return [(split.sampler.rows(world), max(height, largest), max(width, largest))]


def _refuse_small(index: Index, order: Order, spec: SamplerSpec) -> None:
    an_epoch = "" if order.size == len(index) else " an epoch"
    name, size = spec.batch_setting[0], str(order.global_batch)
    if order.global_batch_size is None:
        size = str(order.batch_size)
        size += f" x {order.world} processes" if order.world > 1 else ""
    raise UserError(
        f"{index.source}: {order.size} images{an_epoch} are fewer than one batch of {size}; "
        f"lower DataLoader.Train.sampler.{name}"
    )
