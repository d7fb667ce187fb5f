"""Which samples make an epoch and how they make batches: ``DataLoader.<split>.sampler``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Count, Index, NonNegative, Spec, problem
from ppcls.config.sections.transform import ChainError, Transform, check_chain


class InputSize(Spec):
    """Square images of several sizes, the same on all processes at a step."""

    sizes: tuple[Count, ...] = Field(min_length=1, description="sides of the images, in pixels")


class MultiScale(InputSize):
    """A size drawn at random every so many batches."""

    every: Count = Field(1, description="batches of one size in a row")


class Progressive(InputSize):
    """One size after the other, small ones first (progressive learning, Tan & Le 2021, section 4)."""

    epochs: tuple[Index, ...] = Field(description="from which epoch on each size holds, from 0")

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        ascending = all(a < b for a, b in zip(self.epochs, self.epochs[1:], strict=False))
        if len(self.epochs) != len(self.sizes) or not ascending or self.epochs[:1] != (0,):
            raise ValueError(
                f"expected {len(self.sizes)} epochs, one for each size, the first 0, each later than the one "
                f"before; got {list(self.epochs)}"
            )
        return self


class EqualPixels(InputSize):
    """A size for each step, drawn once for all epochs, with fewer images the larger they are.

    It is what ``MultiScaleSampler`` says; YAML has no other name for it.
    """

    rows: tuple[Count, ...] = Field(description="images a process and step, one number for each size")

    @property
    def most(self) -> int:
        """The most images of a step."""
        return max(self.rows)

    def grouped(self, group: int) -> Self:
        """Returns the same with multiples of ``group`` images, at least one of them."""
        return self.model_copy(update={"rows": tuple(max(1, rows // group) * group for rows in self.rows)})


def check_sizes(specs: Sequence[Transform], sizes: Sequence[int]) -> None:
    """Folds what is known of an image through a chain at each size.

    Raises:
        ValueError: The chain does not end in square images of that size.
    """
    for size in sizes:
        at = next((at for at in reversed(range(len(specs))) if specs[at].resized(size) is not None), None)
        if at is None:
            raise ValueError("input_size needs RandCropImage or ResizeImage(size) in transform_ops")
        changed = specs[at].resized(size)
        assert changed is not None
        try:
            made = check_chain([*specs[:at], changed, *specs[at + 1 :]]).size
        except ChainError as error:
            raise ValueError(f"at size {size}: {error}") from None
        if made != (size, size):
            raise ValueError(
                f"transform_ops makes images of {list(made or ())} at size {size}: a transform behind "
                f"{specs[at].kind} has a size of its own; remove it"
            )


class SamplerSpec(Spec):
    """How samples make batches."""

    drop_last: bool = Field(False, description="leave out an epoch's last batch where it is smaller")

    @property
    def group(self) -> int:
        """Rows that follow each other and stay on one process."""
        return 1

    @property
    def fixed_global_batch(self) -> int | None:
        """Images of a step over all processes, where that is what is given."""
        return None

    @property
    def input_size(self) -> EqualPixels | None:
        """The images' sizes, where it gives them."""
        return None

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Which key gives the size of a batch, and what it is."""
        raise NotImplementedError(f"{self.kind} does not say how large a batch is")

    def global_batch(self, world: int) -> int:
        """Returns the images of a step over all of ``world`` processes."""
        return self.fixed_global_batch or self.batch_setting[1] * world

    def rows(self, world: int, group: int = 1) -> int:
        """Returns the most images of a step on one of ``world`` processes, which share whole groups."""
        return (
            self.batch_setting[1]
            if self.fixed_global_batch is None
            else -(-self.fixed_global_batch // (group * world)) * group
        )


class FixedSizeSampler(SamplerSpec):
    """Batches that are as large as each other."""

    batch_size: Count | None = Field(None, description="images a process and step; this or global_batch_size")
    global_batch_size: Count | None = Field(
        None, description="images a step over all processes, however many there are"
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.batch_size is None and self.global_batch_size is None:
            text = "missing; expected this, or global_batch_size"
            raise ValidationError.from_exception_data("batch", [problem(text, "batch_size")])
        if self.batch_size is not None and self.global_batch_size is not None:
            text = "expected this (over all processes) or batch_size (of each), got both; set one to null"
            raise ValidationError.from_exception_data("batch", [problem(text, "global_batch_size")])
        return self

    @property
    def fixed_global_batch(self) -> int | None:
        """``global_batch_size``."""
        return self.global_batch_size

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Which of the two sizes is given, and what it is."""
        if self.global_batch_size is not None:
            return "global_batch_size", self.global_batch_size
        assert self.batch_size is not None  # by _check_sizes
        return "batch_size", self.batch_size


class DistributedBatchSampler(FixedSizeSampler):
    """Each sample once an epoch; the default."""

    shuffle: bool = Field(False, description="a new random order every epoch")


class BatchSampler(DistributedBatchSampler):
    """PaddleClas's other name of DistributedBatchSampler."""


class ClassBalancedSampler(FixedSizeSampler):
    """All classes equally often, however many images they have; each in turn, in random order."""

    samples: Count | None = Field(None, description="samples an epoch; by default those of the dataset")


class WeightedSampler(FixedSizeSampler):
    """Draws at random with replacement, each sample as often as its weight says."""

    class_weights: tuple[NonNegative, ...] | None = Field(
        None, description="weight of each sample of a class, one for each class"
    )
    weights_file: str | None = Field(
        None, description="instead: a text file with one weight a line, one for each sample, in their order"
    )
    samples: Count | None = Field(None, description="samples an epoch; by default those of the dataset")

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if (self.class_weights is None) == (self.weights_file is None):
            raise ValueError("expected either class_weights or weights_file")
        if self.class_weights is not None and not any(self.class_weights):
            text = "expected at least one weight > 0"
            raise ValidationError.from_exception_data("weights", [problem(text, "class_weights")])
        return self


class RepeatedAugSampler(FixedSizeSampler):
    """Repeated augmentation: a part of the images an epoch, each several times in one global batch."""

    num_repeats: Count = Field(3, description="copies of an image, each augmented anew")
    shuffle: Literal[True] = Field(True, description="only True: every epoch takes other images")


class MultiScaleSampler(SamplerSpec):
    """Each sample once an epoch, in images of several sizes: the smaller, the more in a batch.

    A step's size is drawn once for the whole run, so that all epochs have as many steps. Beside it neither
    ``input_size`` nor a cache of decoded images.
    """

    scales: tuple[Count, ...] = Field(min_length=1, description="sides of the images, in pixels")
    first_bs: Count = Field(
        description="images a process and step at the first of `scales`; at the others as many as have no "
        "more pixels than these, at least one"
    )
    divided_factor: Count = Field(32, description="sides are lowered to multiples of it")
    is_training: Literal[True] = Field(True, description="only True: evaluation has one size")
    shuffle: Literal[True] = Field(True, description="only True: a new random order every epoch")

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        if min(self.scales) < self.divided_factor:
            text = f"expected at least divided_factor ({self.divided_factor}), got {min(self.scales)}"
            raise ValidationError.from_exception_data("scales", [problem(text, "scales")])
        return self

    @property
    def input_size(self) -> EqualPixels:
        """The sizes, each with its images a process and step."""
        sizes = tuple(side // self.divided_factor * self.divided_factor for side in self.scales)
        pixels = self.scales[0] ** 2 * self.first_bs
        return EqualPixels(sizes=sizes, rows=tuple(max(1, pixels // side**2) for side in sizes))

    @property
    def batch_setting(self) -> tuple[str, int]:
        """``first_bs``."""
        return "first_bs", self.first_bs

    def global_batch(self, world: int) -> int:
        """Returns the most images of a step over all of ``world`` processes."""
        return self.rows(world) * world

    def rows(self, world: int, group: int = 1) -> int:  # noqa: ARG002
        """Returns the most images of a step on one process."""
        return self.input_size.grouped(group).most


class PKSampler(FixedSizeSampler):
    """Batches of P identities (classes) with K images each, for metric learning."""

    sample_per_id: Count = Field(description="K; P is batch_size / K on each process")
    sample_method: Literal["id_avg_prob"] = Field(
        "id_avg_prob", description="only this: all identities are as likely"
    )
    shuffle: Literal[True] = Field(True, description="only True: identities and images are drawn at random")

    @property
    def group(self) -> int:
        """K: the images of an identity."""
        return self.sample_per_id

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        name, size = self.batch_setting
        if size % self.sample_per_id:
            text = f"expected a multiple of sample_per_id ({self.sample_per_id}), got {size}"
            raise ValidationError.from_exception_data("batch", [problem(text, name)])
        return self
