"""Samplers, which define the samples of an epoch and its batches; and image sizes that change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import BatchSize, Count, Index, NonNegative, Side, Spec, error_at
from ppcls.config.sections.transform import ChainError, Transform, check_chain


class InputSize(Spec):
    """Square images whose size changes during training. In each step, all processes use the same size."""

    sizes: tuple[Side, ...] = Field(min_length=1)
    """Sides of the images in pixels."""


class MultiScale(InputSize):
    """Draws a random size every few batches."""

    every: Count = 1
    """Number of consecutive batches of the same size."""


class Progressive(InputSize):
    """Uses one size after the other, as in progressive learning (Tan & Le 2021, section 4)."""

    epochs: tuple[Index, ...]
    """First epoch of each of the `sizes`, counted from 0. Must start with 0 and increase."""

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
    """Uses one size per step, drawn once for all epochs. Batches of larger images contain fewer images.

    Only `MultiScaleSampler` uses it. It cannot be selected in YAML.
    """

    rows: tuple[Count, ...]
    """Number of images per process and step, one value for each of the `sizes`."""

    @property
    def most(self) -> int:
        """Largest number of images per process and step."""
        return max(self.rows)

    def grouped(self, group: int) -> Self:
        """Returns a copy whose batch sizes are multiples of ``group``, at least ``group``."""
        return self.model_copy(update={"rows": tuple(max(1, rows // group) * group for rows in self.rows)})


def check_sizes(specs: Sequence[Transform], sizes: Sequence[int]) -> None:
    """Checks that a chain of transforms can produce square images of each size.

    Args:
        specs: Chain of transforms.
        sizes: Sides of the images in pixels.

    Raises:
        ValueError: The chain produces images of another size.
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
            actual = "x".join(map(str, result)) if result else "different sizes"
            raise ValueError(
                f"expected transform_ops to produce images of {size}x{size} for input_size {size}, "
                f"got {actual}: a transform after {specs[at].kind} sets the size; remove that transform"
            )


class SamplerSpec(Spec):
    """Sampler, which defines the samples of an epoch and the batches that they form."""

    drop_last: bool = False
    """Skip the last batch of an epoch if it is smaller than the other batches."""

    @property
    def group(self) -> int:
        """Number of consecutive images of a batch that must be on the same process."""
        return 1

    @property
    def fixed_global_batch(self) -> int | None:
        """Number of images per step over all processes; None if the config does not set it."""
        return None

    @property
    def input_size(self) -> EqualPixels | None:
        """Image sizes that the sampler sets; None if it does not."""
        return None

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Name and value of the key that sets the batch size."""
        raise NotImplementedError(f"{self.kind} defines no batch size")

    def global_batch(self, world: int) -> int:
        """Returns the number of images per step over all ``world`` processes."""
        return self.fixed_global_batch or self.batch_setting[1] * world

    def rows(self, world: int, group: int = 1) -> int:
        """Returns the largest number of images per step on one process.

        Args:
            world: Number of processes.
            group: Number of consecutive images that must be on the same process.
        """
        if self.fixed_global_batch is None:
            return self.batch_setting[1]
        return -(-self.fixed_global_batch // (group * world)) * group


class FixedSizeSampler(SamplerSpec):
    """Base class of samplers with batches of the same size."""

    batch_size: BatchSize | None = None
    """Number of images per process and step. Set either `batch_size` or `global_batch_size`."""
    global_batch_size: BatchSize | None = None
    """Number of images per step over all processes, independent of the number of processes. Set either
    `batch_size` or `global_batch_size`."""

    @model_validator(mode="after")
    def _check_batch_size(self) -> Self:
        if self.batch_size is None and self.global_batch_size is None:
            raise error_at("missing; set batch_size or global_batch_size", "batch_size")
        if self.batch_size is not None and self.global_batch_size is not None:
            text = "expected batch_size or global_batch_size, but both are set; set one of them to null"
            raise error_at(text, "global_batch_size")
        return self

    @property
    def fixed_global_batch(self) -> int | None:
        """Number of images per step over all processes: ``global_batch_size``."""
        return self.global_batch_size

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Name and value of the key that is set: ``batch_size`` or ``global_batch_size``."""
        if self.global_batch_size is not None:
            return "global_batch_size", self.global_batch_size
        assert self.batch_size is not None  # by _check_batch_size
        return "batch_size", self.batch_size


class DistributedBatchSampler(FixedSizeSampler):
    """Uses each sample once per epoch. This is the default sampler."""

    shuffle: bool = False
    """Use a new random order of the samples in every epoch."""


class BatchSampler(DistributedBatchSampler):
    """Alias of DistributedBatchSampler, for compatibility with PaddleClas."""


class ClassBalancedSampler(FixedSizeSampler):
    """Draws the same number of samples from each class, in random order."""

    samples: Count | None = None
    """Number of samples per epoch; default: the size of the data set."""


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


class RepeatedAugSampler(FixedSizeSampler):
    """Repeated augmentation: each selected image occurs several times in one batch over all processes.

    Each epoch uses a random part of the images.
    """

    num_repeats: Count = 3
    """Number of copies of an image in a batch. Each copy is augmented differently."""
    shuffle: Literal[True] = True
    """Select other images in every epoch. Only True is supported."""


class MultiScaleSampler(SamplerSpec):
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

    @model_validator(mode="after")
    def _check_multiple(self) -> Self:
        name, size = self.batch_setting
        if size % self.sample_per_id:
            raise error_at(f"expected a multiple of sample_per_id ({self.sample_per_id}), got {size}", name)
        return self
