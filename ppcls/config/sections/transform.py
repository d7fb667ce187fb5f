"""What every transform in ``transform_ops`` is: a spec that says what it does to an image.

The transforms themselves are in ``ppcls.data.transforms.specs``. Each maps what is known of the image
before it to what is known after it, so a chain is checked before any image is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Fraction, Keyed, Positive, Section, Spec
from ppcls.registry import BATCH_TRANSFORMS


class BatchTransform(Spec):
    """Mixes each image of a batch with its neighbour, and their labels as much."""


class _Mixup(Section):
    """What Mixup asks for, alone or as one of several."""

    alpha: Positive = Field(1.0, description="each batch draws the weight from Beta(alpha, alpha)")


class _Cutmix(Section):
    """What CutMix asks for, alone or as one of several."""

    alpha: Positive = Field(
        1.0, description="each batch draws 1 - the window's share of the image from Beta(alpha, alpha)"
    )


class MixupOperator(_Mixup, BatchTransform):
    """Adds up each image and its neighbour by random weights, and their labels (Zhang et al. 2018)."""


class CutmixOperator(_Cutmix, BatchTransform):
    """Takes a random window from each image's neighbour; labels count by area (Yun et al. 2019)."""


class SampledMixup(_Mixup):
    """Mixup in a share of the batches."""

    prob: Fraction = Field(description="share of the batches")


class SampledCutmix(_Cutmix):
    """CutMix in a share of the batches."""

    prob: Fraction = Field(description="share of the batches")


class OpSampler(BatchTransform):
    """Does at random one of the following to each batch, or none."""

    MixupOperator: SampledMixup = Field(SampledMixup(prob=0.0), description="never where it is not given")
    CutmixOperator: SampledCutmix = Field(SampledCutmix(prob=0.0), description="never where it is not given")

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        total = self.MixupOperator.prob + self.CutmixOperator.prob
        if not 0 < total <= 1 + 1e-9:
            raise ValueError(f"expected prob to add up to a share > 0 and <= 1, got {total:.12g}")
        return self


def _check_one(specs: tuple[BatchTransform, ...]) -> tuple[BatchTransform, ...]:
    if len(specs) > 1:
        raise ValueError(
            f"expected at most one, got {', '.join(spec.kind for spec in specs)}; "
            "OpSampler takes one of several for each batch"
        )
    return specs


BatchTransforms = Annotated[
    tuple[Annotated[BatchTransform, Keyed(BATCH_TRANSFORMS)], ...], AfterValidator(_check_one)
]


Layout = Literal["HWC", "CHW"]
Dtype = Literal["uint8", "uint16", "float32", "float16"]


@dataclass(frozen=True)
class ImageState:
    """What is known of every image at one point of a chain.

    Attributes:
        encoded: Still the bytes of a file.
        layout: Order of the axes, once decoded.
        dtype: Of the pixels.
        normalized: Whether NormalizeImage has been at them.
        channels: Number of channels.
        rgb: Whether the first three channels are red, green and blue, in this order.
        size: (height, width) where all images have the same, else None.
        shorter: Length of the shorter side where all images have the same, else None.
    """

    encoded: bool = True
    layout: Layout = "HWC"
    dtype: Dtype = "uint8"
    normalized: bool = False
    channels: int = 3
    rgb: bool = True
    size: tuple[int, int] | None = None
    shorter: int | None = None


class ChainError(ValueError):
    """A transform that can't stand where it stands.

    Attributes:
        position: Its place in the chain, from 0; None where the whole chain is meant.
    """

    def __init__(self, position: int | None, text: str) -> None:
        super().__init__(text)
        self.position = position


class Transform(Spec):
    """Base of all specs.

    Attributes:
        draws: How many uniform random numbers one image needs.
    """

    draws: ClassVar[int] = 0

    def after(self, state: ImageState) -> ImageState:
        """Returns what is known of the image after this transform.

        Raises:
            ValueError: The transform can't be applied to such an image.
        """
        raise NotImplementedError(f"{self.kind} does not say what it does to an image")

    def resized(self, size: int) -> Transform | None:  # noqa: ARG002
        """Returns the same transform making square images of ``size``; None where it sets no size."""
        return None


def check_chain(specs: Sequence[Transform]) -> ImageState:
    """Folds what is known of an image through a chain.

    Returns:
        The state after the last transform: decoded, all images of one size, ready to be stacked.

    Raises:
        ChainError: A transform can't stand where it does, or the images could not make a batch.
    """
    state = ImageState()
    for position, spec in enumerate(specs):
        try:
            state = spec.after(state)
        except ValueError as error:
            raise ChainError(position, str(error)) from None
    if state.encoded:
        raise ChainError(None, "no transform decodes the image; begin with DecodeImage or DecodeNumpy")
    if not state.dtype.startswith("float"):
        raise ChainError(None, "the model needs float32; end with NormalizeImage")
    if state.size is None:
        raise ChainError(
            None, "images of different sizes can't make a batch; add CropImage or ResizeImage(size)"
        )
    return state
