"""The samplers. Each class has the keys of a sampler in YAML, and builds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import BatchSize, Count, NonNegative, Side
from ppcls.config.base.problems import error_at, problem
from ppcls.data.sampling.base import FixedSizeSampler, Sampler
from ppcls.data.sampling.sizes import EqualPixels
from ppcls.errors import UserError, counted

if TYPE_CHECKING:  # a config is checked without NumPy, which these modules import
    from ppcls.data.index.protocol import Index
    from ppcls.data.sampling.epoch_samplers import EpochSampler


class DistributedBatchSampler(FixedSizeSampler):
    """Uses each sample once per epoch. This is the default sampler."""

    plain: ClassVar[bool] = True
    shuffle: bool = False
    """Use a new random order of the samples in every epoch."""

    def build(self, index: Index, world: int) -> EpochSampler:  # noqa: ARG002
        """Returns a sampler that yields each sample once."""
        from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler

        return ShuffledSampler(len(index)) if self.shuffle else SequentialSampler(len(index))

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the data set and the use of its samples."""
        yield from super().problems(facts, part)
        if part == "Train" and facts.mixed_by and not self.shuffle:
            text = (
                f"expected True: {facts.mixed_by} mixes neighbouring images, which often have the same class "
                "if they are not shuffled"
            )
            yield problem(text, "shuffle")


class BatchSampler(DistributedBatchSampler):
    """Alias of DistributedBatchSampler, for compatibility with PaddleClas."""


class ShardSampler(FixedSizeSampler):
    """Uses each sample of a container data set once per epoch, from few shards at a time.

    Each epoch shuffles the shards, and then the samples of each window of shards. Use it for containers in
    object storage that are larger than the local disk.
    """

    window: Count = 8
    """Number of shards whose samples are mixed. All of them should fit into `storage_cache`, together with
    the next ones, which are read ahead."""

    def build(self, index: Index, world: int) -> EpochSampler:  # noqa: ARG002
        """Returns a sampler that yields each sample once."""
        from ppcls.data.sampling.epoch_samplers import ShardWindowSampler

        ends = getattr(index, "shard_ends", None)
        if ends is None:
            raise UserError(
                f"{index.source}: ShardSampler needs a data set in containers, such as WebDataset; set "
                "DataLoader.Train.sampler.name to DistributedBatchSampler, with shuffle: True"
            )
        return ShardWindowSampler(ends, self.window)

    @property
    def by_shards(self) -> bool:
        """True: few shards are used at a time."""
        return True


class ClassBalancedSampler(FixedSizeSampler):
    """Draws the same number of samples from each class, in random order."""

    samples: Count | None = None
    """Number of samples per epoch; default: the size of the data set."""

    def build(self, index: Index, world: int) -> EpochSampler:  # noqa: ARG002
        """Returns a sampler that chooses all classes equally often."""
        from ppcls.data.sampling.epoch_samplers import BalancedClassSampler

        return BalancedClassSampler(index.labels, self.samples or len(index))

    @property
    def needs_classes(self) -> bool:
        """True, because the classes of the samples determine how often they are drawn."""
        return True

    @property
    def rebalances(self) -> bool:
        """True: all classes are drawn equally often."""
        return True


class WeightedSampler(FixedSizeSampler):
    """Draws random samples with replacement. Their probabilities are proportional to weights."""

    class_weights: tuple[NonNegative, ...] | None = None
    """One weight per class, which applies to each sample of the class. Set either `class_weights` or
    `weights_file`."""
    weights_file: str | None = None
    """Text file with one line per sample, in the order of the data set. Each line contains the weight. Set
    either `class_weights` or `weights_file`."""
    samples: Count | None = None
    """Number of samples per epoch; default: the size of the data set."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if (self.class_weights is None) == (self.weights_file is None):
            raise ValueError("expected either class_weights or weights_file; set exactly one of them")
        if self.class_weights is not None and not any(self.class_weights):
            raise error_at("expected at least one weight > 0", "class_weights")
        return self

    def build(self, index: Index, world: int) -> EpochSampler:  # noqa: ARG002
        """Returns a sampler that draws samples with probabilities in proportion to their weights."""
        import numpy as np

        from ppcls.data.sampling.epoch_samplers import WeightedRandomSampler
        from ppcls.data.sampling.weights import read_weights

        samples = self.samples or len(index)
        if self.weights_file is not None:
            return WeightedRandomSampler(read_weights(Path(self.weights_file), index), samples)
        weights = np.array(self.class_weights, np.float64)[index.labels]
        if not weights.any():
            raise UserError(
                f"{index.source}: the classes of all samples have weight 0; "
                "increase DataLoader.Train.sampler.class_weights for a class that has samples"
            )
        return WeightedRandomSampler(weights, samples)

    @property
    def needs_classes(self) -> bool:
        """Whether the weights are given per class."""
        return self.class_weights is not None

    @property
    def rebalances(self) -> bool:
        """Whether the weights are given per class, and differ."""
        return self.class_weights is not None and len(set(self.class_weights)) > 1

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the data set and the number of classes."""
        yield from super().problems(facts, part)
        weights = self.class_weights
        if weights is not None and len(weights) != facts.class_num:
            text = f"expected one weight for each of Arch.class_num ({facts.class_num}) classes"
            yield problem(f"{text}, got {len(weights)}", "class_weights")


class RepeatedAugSampler(FixedSizeSampler):
    """Repeated augmentation: each selected image occurs several times in one batch over all processes.

    Each epoch uses a random part of the images.
    """

    num_repeats: Count = 3
    """Number of copies of an image in a batch. Each copy is augmented differently."""
    shuffle: Literal[True] = True
    """Select other images in every epoch. Only True is supported."""

    def build(self, index: Index, world: int) -> EpochSampler:
        """Returns a sampler that yields several copies of a random part of the images."""
        from ppcls.data.sampling.epoch_samplers import RepeatedAugmentationSampler

        return RepeatedAugmentationSampler(len(index), self.num_repeats, self.global_batch(world))


class MultiScaleSampler(Sampler):
    """Uses each sample once per epoch, in several image sizes. Batches of smaller images have more images.

    The size of each step is drawn once for the whole run, so all epochs have the same number of steps. This
    sampler does not support ``input_size`` and DALI's cache of decoded images.
    """

    scales: tuple[Side, ...] = Field(min_length=1)
    """Sides of the images in pixels."""
    first_bs: BatchSize
    """Number of images per process and step at the first size of `scales`. At other sizes, a batch has as
    many images as fit into the same total number of pixels, but at least one."""
    divided_factor: Count = 32
    """Divisor of the image sides, in pixels. The `scales` are rounded down to multiples of it."""
    is_training: Literal[True] = True
    """Use several sizes, which is only supported for training. Only True is supported."""
    shuffle: Literal[True] = True
    """Use a new random order of the samples in every epoch. Only True is supported."""

    @model_validator(mode="after")
    def _check_scales(self) -> Self:
        if min(self.scales) < self.divided_factor:
            text = f"expected at least divided_factor ({self.divided_factor}), got {min(self.scales)}"
            raise error_at(text, "scales")
        return self

    @property
    def input_size(self) -> EqualPixels:
        """Image sizes, and the number of images per process and step of each size."""
        sizes = tuple(side // self.divided_factor * self.divided_factor for side in self.scales)
        pixels = self.scales[0] ** 2 * self.first_bs
        return EqualPixels(sizes=sizes, rows=tuple(max(1, pixels // side**2) for side in sizes))

    def with_one_size(self) -> Sampler:
        """Returns a sampler for batches of ``first_bs`` images, also in random order."""
        return DistributedBatchSampler(batch_size=self.first_bs, shuffle=True)

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Name and value of ``first_bs``."""
        return "first_bs", self.first_bs

    def global_batch(self, world: int) -> int:
        """Returns the largest number of images per step over all ``world`` processes."""
        return self.rows(world) * world

    def rows(self, world: int, group: int = 1) -> int:  # noqa: ARG002
        """Returns the largest number of images per step on one process."""
        return self.input_size.grouped(group).most

    def build(self, index: Index, world: int) -> EpochSampler:  # noqa: ARG002
        """Returns a sampler that yields each sample once, in random order."""
        from ppcls.data.sampling.epoch_samplers import ShuffledSampler

        return ShuffledSampler(len(index))


class PKSampler(FixedSizeSampler):
    """Draws batches of P identities (classes) with K images each, for metric learning."""

    sample_per_id: Count
    """Number K of images per identity. A batch of one process has P = batch_size / K identities."""
    sample_method: Literal["id_avg_prob"] = "id_avg_prob"
    """Method to draw identities. Only `id_avg_prob` is supported: all identities have the same
    probability."""
    shuffle: Literal[True] = True
    """Draw identities and images at random. Only True is supported."""

    @property
    def group(self) -> int:
        """Number of images per identity."""
        return self.sample_per_id

    @property
    def needs_classes(self) -> bool:
        """True, because classes are identities."""
        return True

    @property
    def mixed_setting(self) -> tuple[str, int]:
        """Name and value of ``sample_per_id``, so that the images of a pair have the same identity."""
        return "sample_per_id", self.sample_per_id

    @model_validator(mode="after")
    def _check_multiple(self) -> Self:
        name, size = self.batch_setting
        if size % self.sample_per_id:
            raise error_at(f"expected a multiple of sample_per_id ({self.sample_per_id}), got {size}", name)
        return self

    def build(self, index: Index, world: int) -> EpochSampler:
        """Returns a sampler that fills batches with images of a few identities.

        Raises:
            UserError: There are fewer identities than a global batch needs.
        """
        import numpy as np

        from ppcls.data.sampling.epoch_samplers import IdentitySampler

        needed = self.global_batch(world) // self.sample_per_id
        identities = len(np.unique(index.labels))
        if identities < needed:
            name, size = self.batch_setting
            ranks = f" x {counted(world, 'process')}" if name == "batch_size" else ""
            raise UserError(
                f"{index.source}: found {counted(identities, 'identity')}, but PKSampler needs {needed} per "
                f"step ({name} {size} / sample_per_id {self.sample_per_id}{ranks}); decrease "
                f"DataLoader.Train.sampler.{name} or increase its sample_per_id"
            )
        return IdentitySampler(index.labels, self.sample_per_id, needed)
