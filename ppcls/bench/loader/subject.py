"""What the loaders' benchmark works on: some of a data set's images, over and over, in batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.config.schema import Config
from ppcls.config.sections.loader import Dali, Split
from ppcls.config.sections.sampler import DistributedBatchSampler, MultiScaleSampler
from ppcls.config.sections.transform import Layout, check_chain
from ppcls.data.index.read import Index, read_index
from ppcls.data.loaders.dali.settings import DaliSettings, resolve_dali_settings
from ppcls.data.sampling.order import Order
from ppcls.data.sampling.sampler import Positions
from ppcls.data.transforms.specs import CropImage, Op, ResizeImage, count_draws, plan_chain
from ppcls.data.transforms.specs.rng import permutation, uniforms
from ppcls.errors import UserError
from ppcls.runtime.hardware import Card
from ppcls.runtime.start import Runtime, selected_card

Chain = Literal["read", "decode", "crop", "config"]
CHAINS: tuple[Chain, ...] = ("read", "decode", "crop", "config")
_AT_ONCE = 1 << 16  # samples of an epoch, for a loader's workers begin anew with each
_WEIGHED = 256  # images whose bytes are counted
_HELD = 2  # batches that are kept in memory for a stage
_SHORT = 256 / 224  # of the size that is cut, to which the shorter side is resized before


@dataclass(frozen=True)
class Again:
    """Some samples of a data set, each as often as the others, in random order.

    Attributes:
        size: Samples of the data set.
        images: How many of them.
        times: How often in an epoch.
    """

    size: int
    images: int
    times: int

    def __len__(self) -> int:
        return self.images * self.times

    def chosen(self, seed: int) -> Positions:
        """Returns the positions of the samples, [images] int64."""
        return permutation(seed, 0, self.size)[: self.images]

    def epoch(self, seed: int, epoch: int) -> Positions:
        """See `ppcls.data.sampling.sampler.EpochSampler`."""
        return self.chosen(seed)[permutation(seed, 1 + epoch, len(self)) % self.images]

    def describe(self) -> str:
        """See `ppcls.data.sampling.sampler.EpochSampler`."""
        return f"{self.images} of {self.size}, {self.times} times"


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        config: Whose ``DataLoader.Train`` it is.
        split: That.
        runtime: Device and cores.
        index: Its samples.
        images: How many of them are used.
        card: The GPU as NVML knows it; None where it doesn't, or on a CPU.
    """

    config: Config
    split: Split
    runtime: Runtime
    index: Index
    images: int
    card: Card | None = None

    @property
    def batch_size(self) -> int:
        """Images a batch."""
        return self.split.sampler.rows(self.runtime.world_size)

    @property
    def on_gpu(self) -> bool:
        """Whether the config's run would be on a GPU."""
        return self.runtime.device_id is not None

    def order(self, *, once: bool) -> Order:
        """Returns the order of an epoch: each image once, or so often that the epoch does not end."""
        times = 1 if once else max(1, -(-_AT_ONCE // self.images))
        sampler = Again(len(self.index), self.images, times)
        return Order(sampler, self.batch_size, self.config.Global.seed, drop_last=True)

    @cached_property
    def positions(self) -> Positions:
        """The images' positions in the data set, [images] int64."""
        return Again(len(self.index), self.images, 1).chosen(self.config.Global.seed)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the images."""
        names = (self.index.name(position) for position in self.positions.tolist())
        return tuple(map(Path, dict.fromkeys(names)))

    @cached_property
    def image_bytes(self) -> float:
        """Mean size of an encoded image."""
        few = self.positions[:_WEIGHED].tolist()
        return sum(len(self.index.read(position)) for position in few) / len(few)

    def read_all(self) -> None:
        """Reads every image once, which brings it into the page cache where that is large enough."""
        for position in self.positions.tolist():
            self.index.read(position)

    def ops(self, chain: Chain) -> tuple[Op, ...]:
        """Returns a chain at work; of ``decode`` a single pixel is left, so that batches can be made."""
        specs, layout = self.split.dataset.transform_ops, layout_of(self.config)
        match chain:
            case "config":
                return plan_chain(specs, layout)
            case "crop":
                return plan_chain((specs[0], *self.cut()), "HWC")
            case "decode":
                return plan_chain((specs[0], CropImage(size=(1, 1))), "HWC")
            case "read":
                return ()

    def held(self) -> list[list[int]]:
        """Returns the positions of the batches that a stage alone works on, one after the other."""
        few, size = self.positions[: _HELD * self.batch_size].tolist(), self.batch_size
        return [few[begin : begin + size] for begin in range(0, len(few) - size + 1, size)]

    def draws(self, position: int) -> NDArray[np.float32]:
        """Returns the random numbers of an image in the first epoch."""
        ops, seed = self.ops("config"), self.config.Global.seed
        draws = uniforms(seed, 0, np.asarray([position]), count_draws(ops), np.zeros(1, np.int64))
        return np.asarray(draws[0], np.float32)

    def cut(self) -> tuple[ResizeImage, CropImage]:
        """Returns how the centre is cut of an image: resized to a margin around the config's size before."""
        width, height = self.crop_size
        short = round(min(width, height) * _SHORT)
        return ResizeImage(resize_short=short), CropImage(size=(min(width, short), min(height, short)))

    @property
    def crop_size(self) -> tuple[int, int]:
        """Width and height of the config's images."""
        state = check_chain(self.split.dataset.transform_ops)
        assert state.size is not None  # by check_chain
        return state.size[::-1]

    @property
    def on_cpu(self) -> Subject:
        """The same without a GPU."""
        runtime = replace(self.runtime, device="cpu", device_id=None, card=None, budget=None)
        return replace(self, runtime=runtime)

    def settings(self, threads: int, prefetch: int | None, **more: object) -> DaliSettings:
        """Returns DALI's settings: the config's but for these."""
        update = {"num_threads": threads, **({"prefetch_queue_depth": prefetch} if prefetch else {}), **more}
        dali: Dali = self.split.loader.dali.model_copy(update=update)
        return resolve_dali_settings(dali, self.runtime)


def layout_of(config: Config) -> Layout:
    """Returns the layout of images as the model takes them."""
    return "CHW" if config.Arch.data_format == "NCHW" else "HWC"


def read_subject(config: Config, runtime: Runtime, images: int) -> Subject:
    """Reads what is to be measured.

    Args:
        config: With ``DataLoader.Train``.
        runtime: Device and cores; one process.
        images: The most that are used.

    Raises:
        UserError: There is no ``DataLoader.Train``, its data can't be used, or an image can't be read.
    """
    split = config.DataLoader.Train
    if split is None:
        raise UserError("the benchmark needs DataLoader.Train in the config")
    if runtime.world_size > 1:
        raise UserError("this benchmark is of one process; start it without paddle.distributed.launch")
    if split.input_size is not None:
        split = split.model_copy(update={"input_size": None})
    if isinstance(split.sampler, MultiScaleSampler):
        sampler = DistributedBatchSampler(batch_size=split.sampler.first_bs, shuffle=True)
        split = split.model_copy(update={"sampler": sampler})
    index = read_index(split.dataset, config.Arch.class_num)
    card = selected_card() if runtime.device_id is not None else None
    subject = Subject(config, split, runtime, index, min(images, len(index)), card)
    if subject.images < subject.batch_size:
        raise UserError(
            f"{index.source}: {subject.images} images are fewer than one batch of {subject.batch_size}; "
            "lower DataLoader.Train.sampler.batch_size, or raise --images"
        )
    return subject
