"""Training images whose size changes on the way: ``DataLoader.Train.input_size``."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.fields import Count, Index, Spec
from ppcls.config.transform import ChainError, Transform, check_chain


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
