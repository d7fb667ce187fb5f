"""Which samples make an epoch and how they make batches: ``DataLoader.<split>.sampler``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from ppcls.config.fields import Count, NonNegative, Spec, problem


class Sampler(Spec):
    """How samples make batches."""

    batch_size: Count | None = Field(None, description="images a process and step; this or global_batch_size")
    global_batch_size: Count | None = Field(
        None, description="images a step over all processes, however many there are"
    )
    drop_last: bool = Field(False, description="leave out an epoch's last batch where it is smaller")

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
    def group(self) -> int:
        """Rows that follow each other and stay on one process."""
        return 1

    @property
    def size_given(self) -> tuple[str, int]:
        """Which of the two sizes is given, and what it is."""
        if self.global_batch_size is not None:
            return "global_batch_size", self.global_batch_size
        assert self.batch_size is not None  # by _check_sizes
        return "batch_size", self.batch_size

    def global_batch(self, world: int) -> int:
        """Returns the images of a step over all of ``world`` processes."""
        name, size = self.size_given
        return size if name == "global_batch_size" else size * world

    def rows(self, world: int, group: int = 1) -> int:
        """Returns the most images of a step on one of ``world`` processes, which share whole groups."""
        name, size = self.size_given
        return -(-size // (group * world)) * group if name == "global_batch_size" else size


class DistributedBatchSampler(Sampler):
    """Each sample once an epoch; the default."""

    shuffle: bool = Field(False, description="a new random order every epoch")


class BatchSampler(DistributedBatchSampler):
    """PaddleClas's other name of DistributedBatchSampler."""


class ClassBalancedSampler(Sampler):
    """All classes equally often, however many images they have; each in turn, in random order."""

    samples: Count | None = Field(None, description="samples an epoch; by default those of the dataset")


class WeightedSampler(Sampler):
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


class RepeatedAugSampler(Sampler):
    """Repeated augmentation: a part of the images an epoch, each several times in one global batch."""

    num_repeats: Count = Field(3, description="copies of an image, each augmented anew")
    shuffle: Literal[True] = Field(True, description="only True: every epoch takes other images")


class PKSampler(Sampler):
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
        name, size = self.size_given
        if size % self.sample_per_id:
            text = f"expected a multiple of sample_per_id ({self.sample_per_id}), got {size}"
            raise ValidationError.from_exception_data("batch", [problem(text, name)])
        return self
