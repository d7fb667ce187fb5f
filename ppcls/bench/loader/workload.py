"""Workload of the loader benchmark: batches of some images of a data set, which are repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.bench.loader.settings import LoaderSetting
from ppcls.data.build import LoadingSettings, ModelInput, dali_settings
from ppcls.data.index.protocol import Index
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.epoch_samplers import ListSampler, Positions
from ppcls.data.sampling.order import Order
from ppcls.data.section import Split
from ppcls.data.transforms.base import Layout
from ppcls.data.transforms.specs import Op, count_draws, plan_chain
from ppcls.data.transforms.specs.rng import permutation, uniforms
from ppcls.errors import UserError, counted
from ppcls.runtime.hardware import Card
from ppcls.runtime.start import Runtime, selected_card

_EPOCH_SAMPLES = 1 << 16  # minimum number of samples per epoch, because workers restart with every epoch
_WEIGHED = 256  # number of images from which the mean file size is computed


@dataclass(frozen=True)
class LoaderWorkload:
    """Images to load, and the settings with which they are loaded.

    Attributes:
        split: The data set to load, ``DataLoader.Train``.
        arch: Number of classes and layout of the model's images.
        run: Seed, and the choice of the loader.
        runtime: Device and cores.
        index: Samples of the split.
        images: Number of samples that are used.
        card: GPU as NVML reports it; None on a CPU, or if NVML does not report the GPU.
        reader: Function that adds one of DALI's readers to a pipeline; None to read files.
        chain: Operations of the samples, if these are not image files; None for those of the split.
    """

    split: Split
    arch: ModelInput
    run: LoadingSettings
    runtime: Runtime
    index: Index
    images: int
    card: Card | None = None
    reader: Callable[[], Any] | None = None
    chain: tuple[Op, ...] | None = None

    @property
    def batch_size(self) -> int:
        """Images per batch."""
        return self.split.sampler.rows(self.runtime.world_size)

    @property
    def on_gpu(self) -> bool:
        """Whether training with this config uses a GPU."""
        return self.runtime.device_id is not None

    @property
    def layout(self) -> Layout:
        """Layout of the model's images."""
        return "CHW" if self.arch.data_format == "NCHW" else "HWC"

    def order(self, *, mixup: bool = False) -> Order:
        """Returns the order of a long epoch, which repeats all images equally often."""
        repeated = np.tile(self.positions, max(1, -(-_EPOCH_SAMPLES // self.images)))
        group = 2 if mixup else 1
        rows = self.split.sampler.rows(self.runtime.world_size, group)
        sampler = ListSampler(tuple(repeated.tolist()))
        return Order(sampler, rows, self.run.seed, drop_last=True, group=group)

    @cached_property
    def positions(self) -> Positions:
        """Positions of the used images in the data set, in random order, [images] int64."""
        return permutation(self.run.seed, 0, len(self.index))[: self.images]

    @cached_property
    def image_bytes(self) -> float:
        """Mean size of an encoded image in bytes."""
        few = self.positions[:_WEIGHED].tolist()
        return sum(len(self.index.read(position)) for position in few) / len(few)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Transforms of the split, as operations that can be run."""
        return self.chain or plan_chain(self.split.dataset.transform_ops, self.layout)

    def with_cache(self, settings: DaliSettings | None) -> LoaderWorkload:
        """Returns the workload with the decoded images of ``DataLoader.Train.cache``, if it is set.

        Args:
            settings: Settings of DALI; None for ``paddle.io``.
        """
        if self.split.cache is None:
            return self
        from ppcls.data.image_cache.opening import CacheRequest, open_cache

        request = CacheRequest(self.split.cache, "DataLoader.Train.cache")
        index, chain = open_cache(self.index, self.ops, request, settings)
        return replace(self, index=index, chain=chain)

    def draws(self, position: int) -> NDArray[np.float32]:
        """Returns the random numbers for the transforms of an image in the first epoch."""
        seed = self.run.seed
        count = count_draws(self.ops)
        draws = uniforms(seed, 0, np.asarray([position]), count, np.zeros(1, np.int64))
        return np.asarray(draws[0], np.float32)

    @property
    def on_cpu(self) -> LoaderWorkload:
        """The same workload without a GPU."""
        runtime = replace(self.runtime, device="cpu", device_id=None, card=None, budget=None)
        return replace(self, runtime=runtime)

    def dali_settings(self, setting: LoaderSetting) -> DaliSettings:
        """Returns the config's settings of DALI, overridden by those of ``setting``."""
        prefetch = {"prefetch_queue_depth": setting.prefetch} if setting.prefetch is not None else {}
        update = {"num_threads": setting.workers, **prefetch, **setting.dali}
        device = self.on_cpu if setting.backend == "DALI CPU" or setting.stage == "disk" else self
        loader = self.split.loader
        dali = loader.dali.model_copy(update=update)
        split = self.split.model_copy(update={"loader": loader.model_copy(update={"dali": dali})})
        # The benchmark runs the loader alone, and then the GPU decodes fastest without the CPU.
        return dali_settings(split, device.runtime, training=False)


def read_workload(
    split: Split, arch: ModelInput, run: LoadingSettings, runtime: Runtime, images: int
) -> LoaderWorkload:
    """Reads the data set to load.

    Args:
        split: ``DataLoader.Train``.
        arch: See `LoaderWorkload`.
        run: See `LoaderWorkload`.
        runtime: See `LoaderWorkload`.
        images: Maximum number of images to use.

    Raises:
        UserError: The data cannot be used, or there are several processes.
    """
    if runtime.world_size > 1:
        raise UserError("this benchmark needs a single process; run it without paddle.distributed.launch")
    split = split.model_copy(update={"input_size": None, "sampler": split.sampler.with_one_size()})
    index = split.dataset.read(arch.class_num)
    card = selected_card() if runtime.device_id is not None else None
    workload = LoaderWorkload(split, arch, run, runtime, index, min(images, len(index)), card)
    if workload.images < workload.batch_size:
        raise UserError(
            f"{index.source}: expected at least one batch of {counted(workload.batch_size, 'image')}, got "
            f"{workload.images}; lower DataLoader.Train.sampler.batch_size, or raise --images"
        )
    return workload
