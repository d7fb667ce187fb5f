"""Base classes of samplers, which define the samples of an epoch and the batches that they form.

A sampler is a section of the config. `Sampler.build` returns the `EpochSampler` that chooses the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.component import Component
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import BatchSize
from ppcls.config.base.problems import error_at, problem
from ppcls.registry import SAMPLERS

if TYPE_CHECKING:  # a config is checked without NumPy, which these modules import
    from ppcls.data.index.protocol import Index
    from ppcls.data.sampling.epoch_samplers import EpochSampler
    from ppcls.data.sampling.sizes import EqualPixels


class Sampler(Component, registry=SAMPLERS):
    """Sampler, which defines the samples of an epoch and the batches that they form.

    Attributes:
        plain: Whether each sample is used once per epoch, in one size. Evaluations need such a sampler.
    """

    plain: ClassVar[bool] = False
    drop_last: bool = False
    """Skip the last batch of an epoch if it is smaller than the other batches."""

    def build(self, index: Index, world: int) -> EpochSampler:
        """Returns the sampler of a training set.

        Args:
            index: The samples.
            world: Number of processes, which determines the size of the global batch.

        Raises:
            UserError: The sampler does not fit the samples.
        """
        raise NotImplementedError(f"{self.kind} does not define its samples")

    @property
    def needs_classes(self) -> bool:
        """Whether the sampler uses the class of each sample."""
        return False

    @property
    def rebalances(self) -> bool:
        """Whether the sampler draws classes with other frequencies than those of the data set."""
        return False

    @property
    def by_shards(self) -> bool:
        """Whether the order of the samples uses few shards of a container data set at a time."""
        return False

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

    def with_one_size(self) -> Sampler:
        """Returns a sampler for images of one size: this one, unless it sets their sizes."""
        return self

    @property
    def batch_setting(self) -> tuple[str, int]:
        """Name and value of the key that sets the batch size."""
        raise NotImplementedError(f"{self.kind} defines no batch size")

    @property
    def mixed_setting(self) -> tuple[str, int]:
        """Name and value of the key that must be even if batches are mixed, because images form pairs."""
        return self.batch_setting

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the data set and the use of its samples."""
        if part.startswith("Eval") and not self.plain:
            text = "evaluation uses each sample once, in order; expected DistributedBatchSampler"
            yield problem(f"{text}, got {self.kind}", "name")
        if facts.labels.get(part) == "several" and self.needs_classes:
            yield problem(
                f"{self.kind} needs images with one label, but {facts.datasets[part]} has several; "
                "expected DistributedBatchSampler, or WeightedSampler with a weights_file",
                "name",
            )
        if part in facts.random_labels and not self.plain:
            text = f"{self.kind} needs a list file with labels; use DistributedBatchSampler"
            yield problem(text, "name")
        if part == "Train" and facts.mixed_by:
            name, size = self.mixed_setting
            if size % 2:
                text = f"expected an even number, because {facts.mixed_by} mixes pairs of neighbours"
                yield problem(f"{text}, got {size}", name)

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


class FixedSizeSampler(Sampler, abstract=True):
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
