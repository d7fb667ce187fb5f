"""Builds the loader of a split. Only this module chooses between DALI and ``paddle.io``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ppcls.data.bad_images.quarantine import BAD_IMAGES, Quarantine, RejectedImages
from ppcls.data.index.base import Dataset
from ppcls.data.index.protocol import Index
from ppcls.data.index.records import StoredShards
from ppcls.data.loaders.base import DrawnLabels, OrderedLoader
from ppcls.data.loaders.batch import Loader
from ppcls.data.loaders.dali.settings import DaliSettings, resolve_dali_settings
from ppcls.data.loaders.section import Dali
from ppcls.data.sampling.epoch_samplers import SequentialSampler, SubsetSampler
from ppcls.data.sampling.equal_pixels import EqualPixelsOrder
from ppcls.data.sampling.order import Order
from ppcls.data.sampling.sizes import InputSize
from ppcls.data.section import Split, Unlabelled
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms.base import Layout, check_chain
from ppcls.data.transforms.specs import Op, plan_chain
from ppcls.errors import UserError, counted
from ppcls.files.object_cache import GIB
from ppcls.files.urls import local_path
from ppcls.runtime.memory import estimate_pipeline_memory
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:  # training without DALI must not import it
    from ppcls.data.loaders.dali.loader import DaliLoader

_STATISTICS_BATCH = 32  # rows of a batch from which BatchNorm's statistics are estimated
_READER_BATCHES = 3  # batches that the reader of a DALI pipeline holds in addition to the finished batches


class ModelInput(Protocol):
    """The keys of the section ``Arch`` that a loader uses.

    Attributes:
        class_num: Number of classes.
        data_format: Layout of a batch.
    """

    @property
    def class_num(self) -> int:
        """Number of classes."""

    @property
    def data_format(self) -> Literal["NCHW", "NHWC"]:
        """Layout of a batch."""


class LoadingSettings(Protocol):
    """The keys of ``Global`` that loaders use. They belong to several owners.

    Attributes:
        output_dir: Output folder, with the list of bad images.
        seed: Seed of the order of samples and of random transforms.
        update_freq: Number of steps per optimizer update.
        use_dali: Whether DALI loads the images.
    """

    @property
    def output_dir(self) -> str:
        """Output folder."""

    @property
    def seed(self) -> int:
        """Seed of the order of samples and of random transforms."""

    @property
    def update_freq(self) -> int:
        """Number of steps per optimizer update."""

    @property
    def use_dali(self) -> bool:
        """Whether DALI loads the images."""


def build_loader(
    split: Split,
    place: str,
    runtime: Runtime,
    run: LoadingSettings,
    arch: ModelInput,
    label_count: int | None,
) -> Loader:
    """Builds the loader of one split for this rank.

    Args:
        split: Config of the split.
        place: Key of the split in ``DataLoader``. ``Train`` and ``UnLabelTrain`` use the sampler and need at
            least one global batch. Other splits yield each sample once, in order.
        runtime: Rank, world size, device and cores.
        run: Output folder, seed, steps per update and choice of the loader.
        arch: Number of classes and layout of a batch.
        label_count: Number of classes. All labels must be smaller than it. None if any label >= 0 is valid.

    Raises:
        UserError: The dataset is not valid, is smaller than a batch, or does not match the sampler; or the
            backend does not support a transform on this device.
    """
    training = place in ("Train", "UnLabelTrain")
    index = split.dataset.read(label_count)
    mixing = split.dataset.batch_transform_ops if training else ()
    group = math.lcm(split.sampler.group, 2 if mixing else 1) if training else 1
    order = _build_order(split, index, runtime, run, training=training, group=group)
    layout = layout_of(arch)
    # Unlabelled images come from a second loader, which would need as many pipelines again.
    samples = Samples(index, order, split.sizes, trained=place == "Train")
    loader = build_ordered(split, place, runtime, run, layout, samples)
    if not mixing:
        return loader
    from ppcls.data.loaders.mixing import MixedLoader

    return MixedLoader(loader, mixing[0], arch.class_num, layout)


def build_statistics_loader(
    split: Split,
    images: int,
    runtime: Runtime,
    run: LoadingSettings,
    arch: ModelInput,
    label_count: int | None,
) -> Loader:
    """Builds a loader of random training images, with which BatchNorm's statistics are estimated again.

    It yields the same images in each epoch, in batches that do not depend on the number of ranks. A rank
    without a batch in the last step gets only padding. The images are transformed as in training, but not
    mixed, and their size is that of the transforms.

    Args:
        split: Config of the training split.
        images: Maximum number of images over all ranks, which is rounded down to complete batches.
        runtime: See `build_loader`.
        run: See `build_loader`.
        arch: See `build_loader`.
        label_count: See `build_loader`.

    Raises:
        UserError: See `build_loader`.
    """
    index = split.dataset.read(label_count)
    available = min(images, len(index))
    rows = min(_STATISTICS_BATCH, available)
    order = Order(
        sampler=SubsetSampler(len(index), available // rows * rows),
        batch_size=rows,
        group=rows,  # a batch is not divided between ranks
        seed=run.seed,
        rank=runtime.rank,
        world=runtime.world_size,
    )
    return build_ordered(split, "Train", runtime, run, layout_of(arch), Samples(index, order, None))


@dataclass(frozen=True)
class Samples:
    """Samples of a loader.

    Attributes:
        index: All samples of the data set.
        order: Order of the samples.
        sizes: Schedule of the image size; None for the size of the transforms.
        trained: Whether a model is trained on them, so that the GPU is busy while they are decoded.
    """

    index: Index
    order: Order
    sizes: InputSize | None
    trained: bool = False


def build_ordered(
    split: Split,
    place: str,
    runtime: Runtime,
    run: LoadingSettings,
    layout: Layout,
    samples: Samples,
) -> Loader:
    """Builds the loader of a split for given samples, without mixing of images."""
    index = samples.index
    order = samples.order
    ops = plan_chain(split.dataset.transform_ops, layout)
    quarantine = _build_quarantine(split.dataset, index, local_path(run.output_dir))
    chain = f"DataLoader.{place}.dataset.transform_ops"
    loader: OrderedLoader
    settings = dali_settings(split, runtime, training=samples.trained) if run.use_dali else None
    if settings is not None:
        if settings.device_id is None:
            _check_no_gpu_settings(split.loader.dali, f"DataLoader.{place}.loader.dali")
        check_dali(ops, chain, settings)
    else:
        check_numpy(ops, chain)
    read: Index = index
    chain_of_read = ops
    if split.cache is not None:
        from ppcls.data.image_cache.opening import CacheRequest, open_cache

        request = CacheRequest(split.cache, f"DataLoader.{place}.cache", split.sizes is not None)
        wait = partial(runtime.progress.report, "waiting for decoded images", slow=True)
        read, chain_of_read = open_cache(index, ops, request, settings, wait)
    if settings is not None:
        from ppcls.data.loaders.dali.loader import DaliLoader

        loader = DaliLoader(read, order, chain_of_read, settings, samples.sizes, quarantine)
    else:
        from ppcls.data.loaders.paddle import PaddleLoader, PaddleSettings

        workers = PaddleSettings(split.loader.num_workers, split.loader.use_shared_memory)
        loader = PaddleLoader(read, order, chain_of_read, workers, samples.sizes, quarantine)
    if split.dataset.drawn_label is not None:
        loader.labels = DrawnLabels(ops, split.dataset.drawn_label, order.seed)
    return loader


def add_unlabelled(
    labelled: Loader, split: Unlabelled, runtime: Runtime, run: LoadingSettings, arch: ModelInput
) -> Loader:
    """Returns a loader that adds a weak and a strong view of unlabelled images to each batch.

    Raises:
        UserError: See `build_loader`.
    """
    from ppcls.data.loaders.semi_supervised import SemiSupervisedLoader

    weak, strong = (
        build_loader(view, "UnLabelTrain", runtime, run, arch, None) for view in (split, split.strong)
    )
    return SemiSupervisedLoader(labelled, weak, strong)


def build_file_loader(
    rejected: RejectedImages, ops: tuple[Op, ...], batch_size: int, settings: DaliSettings
) -> DaliLoader:
    """Builds a DALI loader for prediction, which reads each image once, in order.

    Args:
        rejected: Index of the images. Also collects bad images.
        ops: Transforms.
        batch_size: Number of images per batch.
        settings: Settings of DALI.

    Raises:
        UserError: DALI does not support a transform on this device.
    """
    check_dali(ops, "Infer.transforms", settings)
    from ppcls.data.loaders.dali.loader import DaliLoader

    order = Order(SequentialSampler(len(rejected.index)), batch_size=batch_size)
    return DaliLoader(rejected.index, order, ops, settings, quarantine=rejected)


@dataclass(frozen=True)
class Feed:
    """The loader that a split uses.

    Attributes:
        uses_dali: Whether the loader uses DALI instead of ``paddle.io``.
        dali_supported: Whether DALI supports all transforms of the split on this device.
        prefetched: Maximum number of batches that the loader prepares in advance.
    """

    uses_dali: bool
    dali_supported: bool
    prefetched: int


def describe_feed(split: Split, runtime: Runtime, arch: ModelInput, *, use_dali: bool) -> Feed:
    """Describes the loader of a training split without building it."""
    settings = dali_settings(split, runtime, training=True)
    if use_dali:
        return Feed(True, True, settings.pipelines * (settings.per_pipeline().prefetch + _READER_BATCHES))
    prefetched = 2 * split.loader.num_workers  # paddle.io prepares two batches per worker
    try:
        check_dali(plan_chain(split.dataset.transform_ops, layout_of(arch)), "", settings)
    except UserError:
        return Feed(False, False, prefetched)
    return Feed(False, True, prefetched)


def dali_settings(split: Split, runtime: Runtime, *, training: bool) -> DaliSettings:
    """Returns the settings of a split's DALI loader, with ``auto`` replaced by values for this machine.

    Args:
        training: Whether the GPU trains while the loader decodes, so that it decodes more slowly.
    """
    pixels = max(map(math.prod, _batch_shapes(split, runtime.world_size)))
    batch_bytes = pixels * check_chain(split.dataset.transform_ops).pixel_bytes
    dali = split.loader.dali
    if split.cache is not None and runtime.device_id is not None:
        dali = dali.model_copy(update={"decode_on": "cpu"})
    return resolve_dali_settings(dali, runtime, batch_bytes, training=training)


def gpu_memory_need(split: Split, runtime: Runtime, *, training: bool) -> int:
    """Returns the estimated GPU memory of a split's DALI loader in MiB; 0 on a CPU. See `dali_settings`."""
    if runtime.device_id is None:
        return 0
    state = check_chain(split.dataset.transform_ops)
    dali = dali_settings(split, runtime, training=training)
    options = {"itemsize": 2} if state.dtype == "float16" else {}
    if "device_memory_padding" in dali.decoder:
        options["padding"] = dali.decoder["device_memory_padding"]
    pipelines = [dali.per_pipeline(number) for number in range(dali.pipelines)]
    largest = max(
        sum(
            estimate_pipeline_memory(
                rows, one.prefetch, (state.channels, height, width), one.threads, **options
            )
            for one in pipelines
        )
        for rows, height, width in _batch_shapes(split, runtime.world_size)
    )
    return largest + int(dali.decoder.get("cache_size", 0))


def layout_of(arch: ModelInput) -> Layout:
    """Returns the order of the axes of an image in a batch for a model."""
    return "CHW" if arch.data_format == "NCHW" else "HWC"


def _build_order(
    split: Split, index: Index, runtime: Runtime, run: LoadingSettings, *, training: bool, group: int
) -> Order:
    spec = split.sampler
    sizes = split.sampler.input_size
    if training and isinstance(index, StoredShards) and index.total > index.limit and not spec.by_shards:
        raise UserError(
            f"{index.source}: the shards have {index.total / GIB:,.1f} GiB, more than storage_cache "
            f"({index.limit / GIB:g} GiB), and {spec.kind} uses all of them at the same time, so most images "
            "would download a shard. Set DataLoader.Train.sampler.name to ShardSampler, or increase "
            "DataLoader.Train.dataset.storage_cache"
        )
    world = runtime.world_size
    kind = Order if sizes is None else partial(EqualPixelsOrder, sizes=sizes.grouped(group))
    order = kind(
        sampler=spec.build(index, world) if training else SequentialSampler(len(index)),
        batch_size=spec.rows(world, group),
        seed=run.seed,
        rank=runtime.rank,
        world=world,
        drop_last=spec.drop_last and training,
        accumulate=run.update_freq if training else 1,
        group=group,
        global_batch_size=spec.fixed_global_batch,
    )
    if order.global_batch > order.size:
        whole = spec.fixed_global_batch is None and sizes is None and not order.drop_last
        # As in PaddleClas, the only batch of an epoch is smaller. In evaluations, padding would take time.
        if whole and order.size >= world * group:
            return replace(order, batch_size=-(-order.size // (world * group)) * group)
    if training and order.global_batch > order.size:
        per_epoch = "" if order.size == len(index) else " per epoch"
        size = str(order.global_batch)
        if order.global_batch_size is None:
            size = f"{order.batch_size} x {counted(world, 'process')}" if world > 1 else str(order.batch_size)
        key = spec.batch_setting[0]
        option = " (--batch-size)" if key == "batch_size" else ""
        raise UserError(
            f"{index.source}: {counted(order.size, 'image')}{per_epoch} are fewer than one batch of {size}; "
            f"decrease DataLoader.Train.sampler.{key}{option}"
        )
    return order


def _check_no_gpu_settings(dali: Dali, place: str) -> None:
    """Raises `UserError` if a setting needs a GPU."""
    if dali.decode_on in ("gpu", "both"):
        raise UserError(
            f"{place}.decode_on: expected auto or cpu because this run is on the CPU, got {dali.decode_on}"
        )
    if dali.cache_size:
        raise UserError(
            f"{place}.cache_size: expected 0 because this run is on the CPU, got {dali.cache_size}; only the "
            "GPU's decoder has a cache"
        )


def _build_quarantine(dataset: Dataset, index: Index, output_dir: Path) -> Quarantine | None:
    """Returns the quarantine with the bad images already listed; None if a bad image ends the run."""
    if dataset.on_error == "raise":
        return None
    file = output_dir / BAD_IMAGES
    quarantine = Quarantine(index, file, dataset.max_errors)
    lists = [file]
    if dataset.bad_images is not None:
        lists.append(Path(dataset.bad_images))
        if not lists[-1].is_file():
            raise UserError(
                f"{lists[-1]}: no such list of bad images (key bad_images); create it with "
                "`ppcls dataset check`"
            )
    quarantine.recheck(lists, dataset.transform_ops[0])
    return quarantine


def _batch_shapes(split: Split, world: int) -> list[tuple[int, int, int]]:
    """Returns (rows, height, width) of the largest batch on one rank, or of the batch of each input size."""
    size = check_chain(split.dataset.transform_ops).size
    assert size is not None  # by check_chain
    rows = split.sampler.rows(world)
    return [(rows, *size)] if split.sizes is None else split.sizes.batch_shapes(rows, size)
