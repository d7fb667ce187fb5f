"""The base class of transforms, the check of a chain, and transforms of whole batches.

The transforms themselves are in ``ppcls.data.transforms.specs``. Each maps the known properties of an image
before it to those after it, so that a chain is checked before any image is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import Fraction, Keyed, Positive, Section, Spec
from ppcls.registry import BATCH_TRANSFORMS

if TYPE_CHECKING:  # --help and --print-config must not wait for NumPy
    from numpy.typing import NDArray


class BatchTransform(Spec):
    """Mixes each image of a batch, and its label, with its neighbour."""


class _Mixup(Section):
    """Keys of Mixup, alone or in OpSampler."""

    alpha: Positive = 1.0
    """Each batch draws the weight of the image from Beta(alpha, alpha)."""


class _Cutmix(Section):
    """Keys of CutMix, alone or in OpSampler."""

    alpha: Positive = 1.0
    """Each batch draws the share of the image outside the window from Beta(alpha, alpha)."""


class MixupOperator(_Mixup, BatchTransform):
    """Adds each image and its neighbour, and their labels, with random weights (Zhang et al. 2018)."""


class CutmixOperator(_Cutmix, BatchTransform):
    """Copies a random window from each image's neighbour. Labels are weighted by area (Yun et al. 2019)."""


class SampledMixup(_Mixup):
    """Mixup in a share of the batches."""

    prob: Fraction
    """Share of the batches."""


class SampledCutmix(_Cutmix):
    """CutMix in a share of the batches."""

    prob: Fraction
    """Share of the batches."""


class OpSampler(BatchTransform):
    """Applies one of the following to each batch, chosen at random, or none."""

    MixupOperator: SampledMixup = SampledMixup(prob=0.0)
    """Mixup; never by default."""
    CutmixOperator: SampledCutmix = SampledCutmix(prob=0.0)
    """CutMix; never by default."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        total = self.MixupOperator.prob + self.CutmixOperator.prob
        if not 0 < total <= 1 + 1e-9:
            raise ValueError(f"expected the sum of prob to be > 0 and <= 1, got {total:.12g}")
        return self


def _check_one(specs: tuple[BatchTransform, ...]) -> tuple[BatchTransform, ...]:
    if len(specs) > 1:
        raise ValueError(
            f"expected at most one, got {', '.join(spec.kind for spec in specs)}; "
            "use OpSampler to choose between several"
        )
    return specs


BatchTransforms = Annotated[
    tuple[Annotated[BatchTransform, Keyed(BATCH_TRANSFORMS)], ...], AfterValidator(_check_one)
]


Layout = Literal["HWC", "CHW"]
Dtype = Literal["uint8", "uint16", "float32", "float16"]


@dataclass(frozen=True)
class ImageState:
    """Known properties of all images at one point of a chain.

    Attributes:
        encoded: Whether the image is still the content of a file.
        layout: Order of the axes of a decoded image.
        dtype: Type of the pixels.
        normalized: Whether NormalizeImage has been applied.
        channels: Number of channels.
        rgb: Whether the first three channels are red, green and blue, in this order.
        size: (height, width) if it is the same for all images, else None.
        shorter: Length of the shorter side if it is the same for all images, else None.
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
    """A chain of transforms is invalid.

    Attributes:
        position: Position of the invalid transform, from 0; None if the whole chain is invalid.
    """

    def __init__(self, position: int | None, text: str) -> None:
        super().__init__(text)
        self.position = position


class Transform(Spec):
    """Base class of all transforms.

    Attributes:
        draws: Number of uniform random numbers per image.
    """

    draws: ClassVar[int] = 0

    def after(self, state: ImageState) -> ImageState:
        """Returns the known properties of an image after this transform.

        Raises:
            ValueError: The transform can't be applied to such an image.
        """
        raise NotImplementedError(f"{self.kind} does not define its effect on an image")

    def resized(self, size: int) -> Transform | None:  # noqa: ARG002
        """Returns the transform for square images of ``size``; None if it sets no size."""
        return None


class CustomTransform(Transform):
    """A user's transform of one image, for paddle.io (``Global.use_dali: False``).

    ``draws`` is the number of random numbers per image. A transform that changes dtype, channels or size
    also overrides ``after``.
    """

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        if state.encoded:
            raise ValueError("needs pixels; put DecodeImage before it")
        return state

    def apply(self, image: NDArray[Any], draws: NDArray[Any]) -> NDArray[Any]:
        """Returns the transformed image, [H, W, C].

        Args:
            image: [H, W, C]; do not change it in place.
            draws: ``self.draws`` uniform random numbers in [0, 1), float32. They depend on the seed and the
                image only, so that runs can be repeated.
        """
        raise NotImplementedError


def check_chain(specs: Sequence[Transform]) -> ImageState:
    """Returns the known properties of images after a chain: decoded, of one size, ready to form a batch.

    Raises:
        ChainError: A transform can't be applied at its position, or the images can't form a batch.
    """
    state = ImageState()
    for position, spec in enumerate(specs):
        try:
            state = spec.after(state)
        except ValueError as error:
            raise ChainError(position, str(error)) from None
    if state.encoded:
        raise ChainError(None, "no transform decodes the image; start with DecodeImage or DecodeNumpy")
    if not state.dtype.startswith("float"):
        raise ChainError(None, "the model needs float32; end with NormalizeImage")
    if state.size is None:
        raise ChainError(
            None, "images of different sizes can't form a batch; add CropImage or ResizeImage(size)"
        )
    return state
