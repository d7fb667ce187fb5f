"""Samplers and image sizes: which samples form an epoch, and how they form batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import BatchSize, Count, Index, NonNegative, Side, Spec, error_at
from ppcls.config.sections.transform import ChainError, Transform, check_chain


class InputSize(Spec):
    """Square images of several sizes, with the same size on all processes in each step."""

    sizes: tuple[Side, ...] = Field(min_length=1)
    """Sides of the images in pixels."""


class MultiScale(InputSize):
    """A random size for every few batches."""

    every: Count = 1
    """Number of consecutive batches of the same size."""


class Progressive(InputSize):
    """One size after the other, small ones first (progressive learning, Tan & Le 2021, section 4)."""

    epochs: tuple[Index, ...]
    """First epoch of each size, counted from 0."""

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        ascending = all(a < b for a, b in zip(self.epochs, self.epochs[1:], strict=False))
        if len(self.epochs) != len(self.sizes) or not ascending or self.epochs[:1] != (0,):
            raise ValueError(
                f"expected {len(self.sizes)} increasing epochs, one for each size, starting with 0; "
                f"got {list(self.epochs)}"
            )
        return self


class EqualPixels(InputSize):
    """A size for each step, drawn once for all epochs. Batches of larger images have fewer of them.

    `MultiScaleSampler` creates it. It has no name in YAML.
    """

    rows: tuple[Count, ...]
    """Images per process and step, one number for each size."""

    @property
    def most(self) -> int:
        """Largest number of images per process and step."""
        return max(self.rows)

    def grouped(self, group: int) -> Self:
        """Returns a copy whose batches are multiples of ``group`` images, at least one group."""
        return self.model_copy(update={"rows": tuple(max(1, rows // group) * group for rows in self.rows)})


def check_sizes(specs: Sequence[Transform], sizes: Sequence[int]) -> None:
    """Checks that a chain of transforms can produce square images of each size.

    Raises:
        ValueError: The images would have another size.
    """
    for size in sizes:
        at = next((at for at in reversed(range(len(specs))) if specs[at].resized(size) is not None), None)
        if at is None:
            raise ValueError("input_size needs RandCropImage or ResizeImage(size) in transform_ops")
        changed = specs[at].resized(size)
        assert changed is not None
        try:
            result = check_chain([*specs[:at], changed, *specs[at + 1 :]]).size
        except ChainError as error:
            raise ValueError(f"at size {size}: {error}") from None
        if result != (size, size):
            raise ValueError(
                f"transform_ops produces images of {list(result or ())} at size {size}: a transform after "
                f"{specs[at].kind} has a fixed size; remove it"
            )


class SamplerSpec(Spec):
    """How samples form batches."""

    drop_last: bool = False
    """Skip the last batch of an epoch if it is smaller than the others."""

    @property
    def group(self) -> int:
        """Number of consecutive rows that stay on one process."""
        return 1

    @property
    def fixed_global_batch(self) -> int | None:
        """Images per step over all processes, if the config sets it."""
        return None

    @property
    def input_size(self) -> EqualPixels | None:
        """Image sizes, if the sampler sets them."""
        return None

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Key that sets the batch size, and its value."""
        raise NotImplementedError(f"{self.kind} defines no batch size")

    def global_batch(self, world: int) -> int:
        """Returns the images per step over all ``world`` processes."""
        return self.fixed_global_batch or self.batch_setting[1] * world

    def rows(self, world: int, group: int = 1) -> int:
        """Returns the largest batch of one of ``world`` processes that share whole groups."""
        if self.fixed_global_batch is None:
            return self.batch_setting[1]
        return -(-self.fixed_global_batch // (group * world)) * group


class FixedSizeSampler(SamplerSpec):
    """Batches of the same size."""

    batch_size: BatchSize | None = None
    """Images per process and step. Set either this or `global_batch_size`."""
    global_batch_size: BatchSize | None = None
    """Images per step over all processes, however many there are."""

    @model_validator(mode="after")
    def _check_batch_size(self) -> Self:
        if self.batch_size is None and self.global_batch_size is None:
            raise error_at("missing; set this, or global_batch_size", "batch_size")
        if self.batch_size is not None and self.global_batch_size is not None:
            text = "expected this (over all processes) or batch_size (of each), got both; set one to null"
            raise error_at(text, "global_batch_size")
        return self

    @property
    def fixed_global_batch(self) -> int | None:
        """``global_batch_size``."""
        return self.global_batch_size

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Name and value of the key that is set: ``batch_size`` or ``global_batch_size``."""
        if self.global_batch_size is not None:
            return "global_batch_size", self.global_batch_size
        assert self.batch_size is not None  # by _check_batch_size
        return "batch_size", self.batch_size


class DistributedBatchSampler(FixedSizeSampler):
    """Each sample once per epoch. The default."""

    shuffle: bool = False
    """Use a new random order in every epoch."""


class BatchSampler(DistributedBatchSampler):
    """PaddleClas's other name for DistributedBatchSampler."""


class ClassBalancedSampler(FixedSizeSampler):
    """The same number of samples of each class, in random order, however many images the class has."""

    samples: Count | None = None
    """Samples per epoch; by default the size of the data set."""


class WeightedSampler(FixedSizeSampler):
    """Random samples with replacement, with probabilities proportional to weights."""

    class_weights: tuple[NonNegative, ...] | None = None
    """Weight of each sample of a class, one for each class. Set either this or `weights_file`."""
    weights_file: str | None = None
    """Text file with one weight per line, one for each sample, in the order of the samples."""
    samples: Count | None = None
    """Samples per epoch; by default the size of the data set."""

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if (self.class_weights is None) == (self.weights_file is None):
            raise ValueError("expected either class_weights or weights_file")
        if self.class_weights is not None and not any(self.class_weights):
            raise error_at("expected at least one weight > 0", "class_weights")
        return self


class RepeatedAugSampler(FixedSizeSampler):
    """Repeated augmentation: part of the images per epoch, each several times in one global batch."""

    num_repeats: Count = 3
    """Copies of an image, each with its own augmentation."""
    shuffle: Literal[True] = True
    """Must be True: every epoch uses other images."""


class MultiScaleSampler(SamplerSpec):
    """Each sample once per epoch, in images of several sizes: the smaller the images, the larger the batch.

    The size of each step is drawn once for the whole run, so that all epochs have the same number of steps.
    Can't be combined with ``input_size`` or a cache of decoded images.
    """

    scales: tuple[Side, ...] = Field(min_length=1)
    """Sides of the images in pixels."""
    first_bs: BatchSize
    """Images per process and step at the first of `scales`. At other sizes, as many as fit into the same
    total number of pixels; at least one."""
    divided_factor: Count = 32
    """Sides are rounded down to multiples of this."""
    is_training: Literal[True] = True
    """Must be True: evaluation has one size."""
    shuffle: Literal[True] = True
    """Must be True: every epoch has a new random order."""

    @model_validator(mode="after")
    def _check_scales(self) -> Self:
        if min(self.scales) < self.divided_factor:
            text = f"expected at least divided_factor ({self.divided_factor}), got {min(self.scales)}"
            raise error_at(text, "scales")
        return self

    @property
    def input_size(self) -> EqualPixels:
        """Image sizes, each with its number of images per process and step."""
        sizes = tuple(side // self.divided_factor * self.divided_factor for side in self.scales)
        pixels = self.scales[0] ** 2 * self.first_bs
        return EqualPixels(sizes=sizes, rows=tuple(max(1, pixels // side**2) for side in sizes))

    @property
    def batch_setting(self) -> tuple[str, int]:
        """``first_bs``."""
        return "first_bs", self.first_bs

    def global_batch(self, world: int) -> int:
        """Returns the largest number of images per step over all ``world`` processes."""
        return self.rows(world) * world

    def rows(self, world: int, group: int = 1) -> int:  # noqa: ARG002
        """Returns the largest batch of one process."""
        return self.input_size.grouped(group).most


class PKSampler(FixedSizeSampler):
    """Batches of P identities (classes) with K images each, for metric learning."""

    sample_per_id: Count
    """Images per identity, K. Each process has P = batch_size / K identities."""
    sample_method: Literal["id_avg_prob"] = "id_avg_prob"
    """The only supported method: all identities are equally likely."""
    shuffle: Literal[True] = True
    """Must be True: identities and images are random."""

    @property
    def group(self) -> int:
        """K, the images per identity."""
        return self.sample_per_id

    @model_validator(mode="after")
    def _check_multiple(self) -> Self:
        name, size = self.batch_setting
        if size % self.sample_per_id:
            raise error_at(f"expected a multiple of sample_per_id ({self.sample_per_id}), got {size}", name)
        return self
