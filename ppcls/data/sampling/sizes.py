"""Image sizes that change during training.

In each step, all processes use the same size. So the size depends only on the seed and on the position of the
step, and a resumed run continues with the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.component import Component
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Count, Index, Side
from ppcls.config.base.problems import problem
from ppcls.data.transforms.base import ChainError, Transform, check_chain
from ppcls.errors import counted
from ppcls.registry import INPUT_SIZES

if TYPE_CHECKING:  # a config is checked without NumPy, which this module imports
    from ppcls.data.sampling.order import Cursor


class InputSize(Component, registry=INPUT_SIZES):
    """Square images whose size changes during training. In each step, all processes use the same size."""

    sizes: tuple[Side, ...] = Field(min_length=1)
    """Sides of the images in pixels."""

    def size_at(self, seed: int, cursor: Cursor) -> int:
        """Returns the side of the images in pixels at the step of ``cursor``."""
        raise NotImplementedError(f"{self.kind} does not define the size of a step")

    def batch_shapes(self, rows: int, size: tuple[int, int]) -> list[tuple[int, int, int]]:
        """Returns (rows, height, width) of the batches that need the most memory on one process.

        Args:
            rows: Largest number of images per process and step.
            size: Height and width that the transforms produce without changing sizes.
        """
        height, width = size
        largest = max(self.sizes)
        return [(rows, max(height, largest), max(width, largest))]


class MultiScale(InputSize):
    """Draws a random size every few batches."""

    every: Count = 1
    """Number of consecutive batches of the same size."""

    def size_at(self, seed: int, cursor: Cursor) -> int:
        """Draws a new size after every ``every`` steps, and returns the size of the step."""
        from ppcls.data.transforms.specs.rng import Purpose, step_fractions

        (drawn,) = step_fractions(seed, cursor.epoch, cursor.step // self.every, 1, Purpose.SIZE)
        return self.sizes[int(drawn * len(self.sizes))]


class Progressive(InputSize):
    """Uses one size after the other, as in progressive learning (Tan & Le 2021, section 4)."""

    epochs: tuple[Index, ...]
    """First epoch of each of the `sizes`, counted from 0. Must start with 0 and increase."""

    @model_validator(mode="after")
    def _check_epochs(self) -> Self:
        ascending = all(a < b for a, b in zip(self.epochs, self.epochs[1:], strict=False))
        if len(self.epochs) != len(self.sizes) or not ascending or self.epochs[:1] != (0,):
            raise ValueError(
                f"expected {counted(len(self.sizes), 'increasing epoch')}, one for each size, starting with "
                f"0; got {list(self.epochs)}"
            )
        return self

    def size_at(self, seed: int, cursor: Cursor) -> int:  # noqa: ARG002
        """Returns the size for the epoch of ``cursor``."""
        return self.sizes[sum(cursor.epoch >= first for first in self.epochs) - 1]

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflict with a run that ends before the last size."""
        yield from super().problems(facts, part)
        if self.epochs[-1] >= facts.epochs:
            text = f"the last size starts at epoch {self.epochs[-1]}, but Global.epochs is {facts.epochs}"
            yield problem(f"{text}; use earlier epochs", "epochs")


class EqualPixels(InputSize, abstract=True):
    """Uses one size per step, drawn once for all epochs. Batches of larger images contain fewer images.

    Only `MultiScaleSampler` uses it. It is not registered, so it cannot be selected in YAML.
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

    def index_at(self, seed: int, step: int) -> int:
        """Returns the index in ``sizes`` of the size of a step. It is the same in all epochs.

        Otherwise epochs would have different numbers of steps, on which learning-rate schedules depend.
        """
        from ppcls.data.transforms.specs.rng import Purpose, step_fractions

        (drawn,) = step_fractions(seed, 0, step, 1, Purpose.SIZE)
        return int(drawn * len(self.sizes))

    def size_at(self, seed: int, cursor: Cursor) -> int:
        """Draws the size of a step. It is the same in all epochs."""
        return self.sizes[self.index_at(seed, cursor.step)]

    def batch_shapes(self, rows: int, size: tuple[int, int]) -> list[tuple[int, int, int]]:  # noqa: ARG002
        """Returns (rows, height, width) of the batch of each size."""
        return [(count, side, side) for side, count in zip(self.sizes, self.rows, strict=True)]


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
