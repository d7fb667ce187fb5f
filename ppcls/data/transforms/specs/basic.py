"""Defines the most common transforms: decode, resize, crop, flip and normalize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, Number, Side
from ppcls.data.transforms.base import MAX_PIXELS, Dtype, ImageState, Transform
from ppcls.data.transforms.specs.decisions import (
    Decisions,
    Draws,
    Sides,
    check_sides,
    decide,
    fixed_sides,
    sides_after,
)
from ppcls.data.transforms.specs.fields import (
    Size,
    cropped_state,
    need_8_bit,
    need_hwc,
    need_pixels,
    need_unnormalized,
    resized_state,
)
from ppcls.errors import DecodeError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


class Decoder(Transform, abstract=True):
    """Base class of transforms that decode files."""

    expected_size: Size | None = None
    """Size that all images must have, as side of square images or [width, height] in pixels. Images of
    another size are rejected. Default: any size. If no transform sets the size of the images, ppcls reads it
    from their headers and sets this key."""

    def _decoded(self, state: ImageState) -> ImageState:
        """Returns the state of decoded images, without their channels and dtype."""
        if not state.encoded:
            raise ValueError(f"the image is already decoded; remove this {self.kind}")
        state = replace(state, encoded=False)
        return state if self.expected_size is None else resized_state(state, self.expected_size)


@check_sides.register
def check_expected_size(spec: Decoder, sides: Sides) -> None:
    """Raises `DecodeError` if an image does not have the expected size."""
    if spec.expected_size is None:
        return
    width, height = spec.expected_size
    for tall, wide in sides[(sides != (height, width)).any(axis=1)][:1].tolist():
        raise DecodeError(
            f"expected {width}x{height} pixels ({spec.kind}.expected_size), found {wide}x{tall}; resize the "
            f"image, or add ResizeImage to the transforms and remove {spec.kind}.expected_size"
        )


@sides_after.register
def decoded_sides(spec: Decoder, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of decoded images, [N, 2] int64."""
    return sides if spec.expected_size is None else fixed_sides(sides, spec.expected_size)


class DecodeImage(Decoder):
    """Decodes JPEG, PNG, TIFF, BMP, WebP or JPEG 2000 and applies the EXIF orientation."""

    decodes_images: ClassVar[bool] = True
    is_cached: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = {
        "backend": "the loader chooses the decoder",
        "to_np": "transforms always receive arrays",
    }
    to_rgb: bool = True
    """Decode to RGB order; False decodes to BGR order."""
    channel_first: Literal[False] = False
    """Must be False; for CHW use ToCHWImage."""
    channels: Count = 3
    """Number of channels; 3 converts grey, palette and alpha images to colour, any other number must equal
    that of the file."""
    dtype: Literal["uint8", "uint16"] = "uint8"
    """Dtype of the decoded pixels; files with the other bit depth are scaled, so that 255 corresponds to
    65535."""
    max_pixels: Count = MAX_PIXELS
    """An image with more pixels (width x height) is rejected before decoding."""

    @model_validator(mode="after")
    def _check_order(self) -> DecodeImage:
        if not self.to_rgb and self.channels != 3:
            raise ValueError(f"to_rgb: False requires 3 channels, got {self.channels}; remove to_rgb")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of decoded images."""
        return replace(self._decoded(state), channels=self.channels, dtype=self.dtype, rgb=self.to_rgb)

    def only_orders_channels(self, width: int, height: int) -> bool:
        """Returns whether images become RGB or BGR, and whether their size is accepted."""
        is_accepted = self.expected_size in (None, (width, height)) and width * height <= self.max_pixels
        return is_accepted and (self.channels, self.dtype) == (3, "uint8")


class DecodeNumpy(Decoder):
    """Reads ``.npy`` files of arrays [height, width, channels] or [height, width] in C order."""

    channels: Count = 3
    """Number of channels of all arrays; 1 for arrays of shape [height, width]."""
    dtype: Literal["uint8", "uint16", "float32"] = "uint8"
    """Dtype of all arrays."""
    max_pixels: Count = MAX_PIXELS
    """An array with more pixels (width x height) is rejected before it is read."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of decoded images."""
        return replace(self._decoded(state), channels=self.channels, dtype=self.dtype)


@decide.register
def decide_array_shape(spec: DecodeNumpy, draws: Draws, sides: Sides) -> Decisions:
    """Returns the shapes of the arrays, [N, 3] int32."""
    return (np.column_stack([sides, np.full(len(sides), spec.channels)]).astype(np.int32),)


class _ResamplingTransform(Transform, abstract=True):
    """Base class of transforms that resize images."""

    interpolation: Interpolation = "bilinear"
    """Method of interpolation between pixels."""
    backend: Literal["cv2", "pil"] = "cv2"
    """`cv2` interpolates between neighbouring pixels only; `pil` averages over all source pixels (antialias),
    and supports only 8-bit images."""

    @property
    def antialias(self) -> bool:
        """Whether shrinking averages over all source pixels, which avoids aliasing."""
        return self.backend == "pil" and self.interpolation != "nearest"

    @model_validator(mode="after")
    def _check_pair(self) -> _ResamplingTransform:
        if self.backend == "cv2" and self.interpolation != "bilinear":
            raise ValueError(
                f"backend cv2 supports only interpolation bilinear, got {self.interpolation}; set backend: "
                "pil, or interpolation: bilinear"
            )
        return self

    def _check_input(self, state: ImageState) -> None:
        need_hwc(state)
        need_unnormalized(state)
        if self.backend == "pil":
            need_8_bit(state)


class ResizeImage(_ResamplingTransform):
    """Resizes images to ``size``, or so that their shorter side has the length ``resize_short``."""

    ignored: ClassVar[Mapping[str, str]] = {"return_numpy": "images are arrays"}
    is_cached: ClassVar[bool] = True
    size: Size | None = None
    """Side of square images, or [width, height], in pixels. Set either `size` or `resize_short`."""
    resize_short: Side | None = None
    """Length of the shorter side in pixels. The aspect ratio does not change."""

    @model_validator(mode="after")
    def _check_one(self) -> ResizeImage:
        if (self.size is None) == (self.resize_short is None):
            raise ValueError("expected either size or resize_short, got both or neither")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of resized images."""
        self._check_input(state)
        if self.size is not None:
            return resized_state(state, self.size)
        assert self.resize_short is not None
        if state.size is not None:
            height, width = scale_to_short_side(np.array(state.size), self.resize_short).tolist()
            return resized_state(state, (width, height))
        return replace(state, size=None, shorter=self.resize_short)

    def resized(self, size: int) -> ResizeImage | None:
        """Returns the transform with another size, or None if it only sets the shorter side."""
        return None if self.size is None else self.model_copy(update={"size": (size, size)})


@sides_after.register
def resized_sides(spec: ResizeImage, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of resized images, [N, 2] int64."""
    if spec.resize_short is not None:
        return scale_to_short_side(sides, spec.resize_short)
    assert spec.size is not None
    return fixed_sides(sides, spec.size)


def scale_to_short_side(sides: Sides, short: int) -> Sides:
    """Returns sides, [N, 2] int64, scaled so that the shorter one is ``short``. Rounds halves up."""
    shorter = sides.min(axis=-1, keepdims=True)
    scaled: Sides = (2 * sides * short + shorter) // (2 * shorter)
    return scaled


class CropImage(Transform):
    """Crops the centre. If an odd number of pixels is removed, one more is removed at the right or bottom."""

    is_cached: ClassVar[bool] = True
    size: Size
    """Side of a square crop, or [width, height], in pixels."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of cropped images."""
        return cropped_state(state, self.size)


Ratio = Annotated[float, Bound(ge=0.01, le=100)]


class RandCropImage(_ResamplingTransform):
    """Crops a window of random area and aspect ratio and resizes it (Szegedy et al. 2015, section 6)."""

    uses_window: ClassVar[bool] = True
    size: Size
    """Side of square images, or [width, height], in pixels, after resizing."""
    interpolation: Interpolation | Literal["random"] = "bilinear"  # type: ignore[assignment]
    """Method of interpolation. `random` uses bilinear or bicubic, each for half of the images."""
    scale: tuple[Fraction, Fraction] = (0.08, 1.0)
    """Area of the window as a share of the image's area, [min, max]."""
    ratio: tuple[Ratio, Ratio] = (0.75, 4 / 3)
    """Aspect ratio of the window, width / height, [min, max]."""
    use_log_aspect: bool = False
    """Draw the logarithm of the aspect ratio uniformly, instead of the ratio itself."""

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Number of random numbers: aspect, area, left, top; one more for random interpolation."""
        return 4 + (self.interpolation == "random")

    @model_validator(mode="after")
    def _check_ranges(self) -> RandCropImage:
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"expected {name} as [min, max], got [{low}, {high}]")
        if self.scale[1] == 0:
            raise ValueError("expected a maximum scale > 0, got 0")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of resized images."""
        self._check_input(state)
        return resized_state(state, self.size)

    def resized(self, size: int) -> RandCropImage:
        """Returns the transform with another size."""
        return self.model_copy(update={"size": (size, size)})


def random_windows(
    spec: RandCropImage, sides: NDArray[np.integer], draws: NDArray[np.floating]
) -> NDArray[np.int32]:
    """Computes random windows as PaddleClas's RandCropImage does.

    The aspect ratio, or its logarithm, is uniform in ``ratio``. The share of the area is uniform in
    ``scale``, limited to windows that fit into the image. All positions of the window in the image are
    equally likely.

    Args:
        spec: Ranges of area and aspect ratio.
        sides: [N, 2] heights and widths of the images.
        draws: [N, 4] uniform random numbers in [0, 1) for aspect, area, left and top.

    Returns:
        [N, 4] int32: top, left, height and width of each window. Windows are inside the image and not empty.
    """
    height, width = sides.astype(np.float64).T
    draw_aspect, draw_area, draw_left, draw_top = draws.astype(np.float64).T
    low, high = np.log(spec.ratio) if spec.use_log_aspect else spec.ratio
    aspect = low + (high - low) * draw_aspect
    if spec.use_log_aspect:
        aspect = np.exp(aspect)
    bound = np.minimum(width / height / aspect, height / width * aspect)
    lowest = np.minimum(spec.scale[0], bound)
    highest = np.minimum(spec.scale[1], bound)
    area = width * height * (lowest + (highest - lowest) * draw_area)
    cut_width = np.clip(np.floor(np.sqrt(area * aspect)), 1, width)
    cut_height = np.clip(np.floor(np.sqrt(area / aspect)), 1, height)
    left = np.floor((width - cut_width + 1) * draw_left)
    top = np.floor((height - cut_height + 1) * draw_top)
    return np.stack([top, left, cut_height, cut_width], axis=1).astype(np.int32)


@decide.register
def decide_window(spec: RandCropImage, draws: Draws, sides: Sides) -> Decisions:
    """Returns the start (top, left) and the size (height, width) of the window, [N, 2] int32 each.

    With random interpolation, a third array, [N] int32, is 1 for bicubic and 0 for bilinear.
    """
    windows = random_windows(spec, sides, draws[:, :4])
    bicubic = ((draws[:, 4] < 0.5).astype(np.int32),) if spec.interpolation == "random" else ()
    return np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:]), *bicubic


@sides_after.register(CropImage)
@sides_after.register(RandCropImage)
def cropped_sides(spec: CropImage | RandCropImage, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of cropped images, [N, 2] int64."""
    return fixed_sides(sides, spec.size)


class RandFlipImage(Transform):
    """Flips half of the images, chosen at random."""

    draws: ClassVar[int] = 1

    flip_code: Literal[1, 0, -1] = 1
    """Direction of the flip: 1 horizontal, 0 vertical, -1 both."""

    def after(self, state: ImageState) -> ImageState:
        """Checks the state, and returns it unchanged."""
        need_hwc(state)
        return state


@decide.register
def decide_flip(spec: RandFlipImage, draws: Draws, sides: Sides) -> Decisions:
    """Returns whether to flip each image, [N] int32."""
    return ((draws[:, 0] < 0.5).astype(np.int32),)


class NormalizeImage(Transform):
    """Computes ``(pixel * scale - mean) / std`` per channel in float32, and optionally rounds to float16."""

    scale: Number = 1.0 / 255.0
    """Factor of the pixels, applied before mean and std."""
    mean: tuple[Number, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, in units of pixel * `scale`."""
    std: tuple[Annotated[float, Bound(gt=0)], ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel, in units of pixel * `scale`."""
    order: Literal["", "hwc", "chw"] | None = None
    """Layout that the image must have; '' means hwc; null accepts any layout."""
    output_fp16: bool = False
    """Return float16 instead of float32, for mixed precision."""
    channel_num: Count | None = None
    """Number of channels after padding with zeros, such as 4 for tensor cores; null: no padding."""

    @model_validator(mode="after")
    def _check_lengths(self) -> NormalizeImage:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"expected mean and std of equal length, got {len(self.mean)} and {len(self.std)} values"
            )
        if self.scale == 0:
            raise ValueError("expected a scale other than 0, got 0")
        if self.channel_num not in (None, 1) and len(self.mean) == 1:
            raise ValueError("channel_num requires one value per channel in mean and std, got 1 value")
        return self

    @property
    def affine(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Factor and offset of each channel, or of all channels."""
        factors = tuple(self.scale / std for std in self.std)
        offsets = tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))
        return factors, offsets

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of normalized images."""
        need_pixels(state)
        need_unnormalized(state)
        if state.dtype != "uint8" and "scale" not in self.model_fields_set:
            raise ValueError(
                f"the default scale is for 8-bit pixels, but the image is {state.dtype}; set scale"
            )
        if len(self.mean) not in (1, state.channels):
            raise ValueError(f"expected 1 or {state.channels} values in mean and std, got {len(self.mean)}")
        if self.order is not None and (self.order or "hwc").upper() != state.layout:
            raise ValueError(f"order is '{self.order}', but the image is {state.layout}; set order: ''")
        padded = 2 ** (state.channels - 1).bit_length()
        if self.channel_num not in (None, state.channels, padded):
            raise ValueError(
                f"expected channel_num {state.channels} or the next power of two, {padded}, "
                f"got {self.channel_num}"
            )
        dtype: Dtype = "float16" if self.output_fp16 else "float32"
        return replace(state, dtype=dtype, normalized=True, channels=self.channel_num or state.channels)


class ToCHWImage(Transform):
    """Moves the channels to the front: [H, W, C] becomes [C, H, W]."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state of CHW images."""
        need_hwc(state)
        return replace(state, layout="CHW")
