"""Base class of transforms of single images, and the check of a chain of transforms.

The transforms are in ``ppcls.data.transforms.specs``. Each transform computes the properties of an image
after it from the properties before it. A chain can therefore be checked before an image is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ValidationError
from pydantic_core import InitErrorDetails

from ppcls.config.base.choices import Keyed
from ppcls.config.base.component import Component
from ppcls.config.base.facts import RunFacts
from ppcls.config.base.problems import error_at, problem
from ppcls.errors import counted
from ppcls.registry import TRANSFORMS

if TYPE_CHECKING:  # --help and --print-config must not wait for NumPy
    from numpy.typing import NDArray

Layout = Literal["HWC", "CHW"]
Dtype = Literal["uint8", "uint16", "float32", "float16"]
MAX_PIXELS = 100_000_000  # of an image that a transform enlarges, and the default of DecodeImage's max_pixels
_BYTES = {"uint8": 1, "uint16": 2, "float32": 4, "float16": 2}


@dataclass(frozen=True)
class ImageState:
    """Properties that all images have at one position of a chain of transforms.

    Attributes:
        encoded: Whether the image is the undecoded content of a file.
        layout: Order of the axes of a decoded image.
        dtype: Type of the pixels.
        normalized: Whether NormalizeImage was applied.
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

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel, over all channels."""
        return self.channels * _BYTES[self.dtype]


class ChainError(ValueError):
    """Error in a chain of transforms.

    Attributes:
        position: Position of the invalid transform, from 0; None if the whole chain is invalid.
    """

    def __init__(self, position: int | None, text: str) -> None:
        super().__init__(text)
        self.position = position


class Transform(Component, registry=TRANSFORMS):
    """Base class of transforms of single images.

    Attributes:
        draws: Number of uniform random numbers that the transform needs per image.
        label_key: Name of the label that the transform draws, for `CustomLabelDataset`; "" for none.
        label_count: Number of these labels.
        decodes_images: Whether the transform decodes image files. Data sets can also store arrays.
        is_cached: Whether a cache may keep the result: an image always has the same pixels after it, and they
            are not larger than before.
        uses_window: Whether the transform uses only a random window of an image. A decoder can then skip the
            rest of the image.
    """

    draws: ClassVar[int] = 0
    label_key: ClassVar[str] = ""
    label_count: ClassVar[int] = 0
    decodes_images: ClassVar[bool] = False
    is_cached: ClassVar[bool] = False
    uses_window: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Transforms of the config that this one executes, in order: itself, unless it combines several."""
        return (self,)

    @property
    def affine(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Factor and offset of each channel, or of all, if the transform normalizes pixels."""
        return None

    def after(self, state: ImageState) -> ImageState:
        """Returns the properties of an image after this transform.

        Args:
            state: Properties of the image before this transform.

        Raises:
            ValueError: The transform can't be applied to an image with these properties.
        """
        raise NotImplementedError(f"{self.kind} does not define its effect on an image")

    def only_orders_channels(self, width: int, height: int) -> bool:  # noqa: ARG002
        """Returns whether the transform decodes 8-bit grey and RGB images of this size to RGB or BGR.

        So pixels in memory need no decoding. Other decoders reject or convert some of these images.
        """
        return False

    def resized(self, size: int) -> Transform | None:  # noqa: ARG002
        """Returns a copy that produces images of ``size`` x ``size`` pixels; None if no size is set."""
        return None


class CustomTransform(Transform, abstract=True):
    """Base class of users' transforms of single images, for paddle.io (``Global.use_dali: False``).

    A subclass overrides ``apply``. It sets ``draws`` if it needs random numbers, and also overrides ``after``
    if it changes the dtype, the channels or the size of images.
    """

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        if state.encoded:
            raise ValueError("needs pixels; put DecodeImage before it")
        return state

    def apply(self, image: NDArray[Any], draws: NDArray[Any]) -> NDArray[Any]:
        """Returns the transformed image, [H, W, C].

        Args:
            image: Image, [H, W, C]. Do not change it in place.
            draws: Uniform random numbers in [0, 1), [self.draws] float32. They depend only on the seed, the
                epoch and the image, so runs can be repeated.
        """
        raise NotImplementedError


def check_chain(specs: Sequence[Transform]) -> ImageState:
    """Checks a chain of transforms, and returns the properties of images after it.

    Raises:
        ChainError: A transform can't be applied at its position, or the images can't form a batch.
    """
    state = ImageState()
    for position, spec in enumerate(specs):
        try:
            state = spec.after(state)
        except ValueError as error:
            raise ChainError(position, str(error)) from None
        height, width = state.size or (state.shorter or 1, state.shorter or 1)
        if height * width > MAX_PIXELS:
            raise ChainError(
                position, f"expected images of at most {MAX_PIXELS:,} pixels, got at least {width}x{height}"
            )
    if state.encoded:
        raise ChainError(None, "no transform decodes the image; start with DecodeImage or DecodeNumpy")
    if not state.dtype.startswith("float"):
        raise ChainError(None, "the model needs float32; end with NormalizeImage")
    if state.size is None:
        raise ChainError(
            None, "images of different sizes can't form a batch; add CropImage or ResizeImage(size)"
        )
    return state


def chain_problems(specs: Sequence[Transform], facts: RunFacts) -> Iterator[InitErrorDetails]:
    """Yields the conflicts of a chain of transforms with the input of the model."""
    state = check_chain(specs)
    if state.channels != facts.input_channels:
        yield problem(
            f"produces images with {counted(state.channels, 'channel')}, but Arch.input_image_channel is "
            f"{facts.input_channels}; change one of them"
        )
    if state.size is not None:
        for text in facts.size_problems(state.size):
            yield problem(f"produces images of {text}")


def _check_transforms(specs: tuple[Transform, ...]) -> tuple[Transform, ...]:
    try:
        check_chain(specs)
    except ChainError as error:
        place = () if error.position is None else (error.position, specs[error.position].kind)
        raise error_at(str(error), *place) from None
    return specs


def _check_not_random(specs: tuple[Transform, ...]) -> tuple[Transform, ...]:
    random = [
        problem("is random, but prediction is deterministic; remove it", position, spec.kind)
        for position, spec in enumerate(specs)
        if spec.draws
    ]
    if random:
        raise ValidationError.from_exception_data("chain", random)
    return specs


Chain = Annotated[tuple[Annotated[Transform, Keyed(TRANSFORMS)], ...], AfterValidator(_check_transforms)]
FixedChain = Annotated[Chain, AfterValidator(_check_not_random)]
