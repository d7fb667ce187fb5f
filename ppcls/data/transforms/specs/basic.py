"""The transforms of nearly every chain: decode, resize, crop, flip, normalize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, Number, Side
from ppcls.config.sections.transform import Dtype, ImageState, Transform
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide, fixed_sides, sides_after
from ppcls.data.transforms.specs.fields import (
    Size,
    cropped_state,
    need_8_bit,
    need_hwc,
    need_pixels,
    need_unnormalized,
    resized_state,
)

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
_MAX_PIXELS = 100_000_000


class DecodeImage(Transform):
    """Decodes JPEG, PNG, TIFF, BMP, WebP or JPEG 2000 and applies the EXIF orientation."""

    ignored: ClassVar[Mapping[str, str]] = {
        "backend": "the loader chooses the decoder",
        "to_np": "transforms always receive arrays",
    }
    to_rgb: bool = Field(True, description="RGB order; False for BGR")
    channel_first: Literal[False] = Field(False, description="must be False; for CHW use ToCHWImage")
    channels: Count = Field(
        3,
        description="3 converts grey, palette and alpha images to colour; other numbers must match the file",
    )
    dtype: Literal["uint8", "uint16"] = Field(
        "uint8", description="bit depth of the pixels; files of the other depth are scaled: 255 becomes 65535"
    )
    max_pixels: Count = Field(
        _MAX_PIXELS, description="an image with more pixels (width x height) is rejected before decoding"
    )

    @model_validator(mode="after")
    def _check_order(self) -> DecodeImage:
        if not self.to_rgb and self.channels != 3:
            raise ValueError(f"to_rgb: False is for 3 channels, not {self.channels}; remove it")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns a decoded state."""
        if not state.encoded:
            raise ValueError("the image is decoded already; remove this DecodeImage")
        return replace(state, encoded=False, channels=self.channels, dtype=self.dtype, rgb=self.to_rgb)


class DecodeNumpy(Transform):
    """Reads ``.npy`` files instead of DecodeImage: [height, width, channels] or [height, width], C order."""

    channels: Count = Field(3, description="channels of every array; 1 for arrays [height, width]")
    dtype: Literal["uint8", "uint16", "float32"] = Field("uint8", description="dtype of every array")
    max_pixels: Count = Field(
        _MAX_PIXELS, description="an array with more pixels (width x height) is rejected before it is read"
    )

    def after(self, state: ImageState) -> ImageState:
        """Returns a decoded state."""
        if not state.encoded:
            raise ValueError("the image is decoded already; remove this DecodeNumpy")
        return replace(state, encoded=False, channels=self.channels, dtype=self.dtype)


@decide.register
def decide_array_shape(spec: DecodeNumpy, draws: Draws, sides: Sides) -> Decisions:
    """The array's shape, [N, 3] int32."""
    return (np.column_stack([sides, np.full(len(sides), spec.channels)]).astype(np.int32),)


class _ResamplingTransform(Transform):
    """Interpolates pixels."""

    interpolation: Interpolation = "bilinear"
    """How pixels are interpolated."""
    backend: Literal["cv2", "pil"] = Field(
        "cv2",
        description="cv2 samples without a filter; pil, for 8-bit images, averages over all source pixels "
        "(antialias)",
    )

    @property
    def antialias(self) -> bool:
        """Whether shrinking averages over all source pixels."""
        return self.backend == "pil" and self.interpolation != "nearest"

    @model_validator(mode="after")
    def _check_pair(self) -> _ResamplingTransform:
        if self.backend == "cv2" and self.interpolation != "bilinear":
            raise ValueError(
                f"no other backend matches cv2's {self.interpolation} sampling; use backend: pil, or bilinear"
            )
        return self

    def _check_input(self, state: ImageState) -> None:
        need_hwc(state)
        need_unnormalized(state)
        if self.backend == "pil":
            need_8_bit(state)


class ResizeImage(_ResamplingTransform):
    """Resizes to ``size``, or so that the shorter side becomes ``resize_short``."""

    ignored: ClassVar[Mapping[str, str]] = {"return_numpy": "images are arrays"}
    size: Size | None = None
    """Side, or [width, height]. Set either this or `resize_short`."""
    resize_short: Side | None = None
    """Length of the shorter side. The aspect ratio is kept."""

    @model_validator(mode="after")
    def _check_one(self) -> ResizeImage:
        if (self.size is None) == (self.resize_short is None):
            raise ValueError("expected either size or resize_short")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the new size."""
        self._check_input(state)
        if self.size is not None:
            return resized_state(state, self.size)
        return replace(state, size=None, shorter=self.resize_short)

    def resized(self, size: int) -> ResizeImage | None:
        """Returns the transform for another size; None if it only sets the shorter side."""
        return None if self.size is None else self.model_copy(update={"size": (size, size)})


@sides_after.register
def resized_sides(spec: ResizeImage, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the sides of resized images."""
    if spec.resize_short is not None:
        return scale_to_short_side(sides, spec.resize_short)
    assert spec.size is not None
    return fixed_sides(sides, spec.size)


def scale_to_short_side(sides: Sides, short: int) -> Sides:
    """Returns sides, [N, 2] int64, scaled so that the shorter one becomes ``short``; rounds half up."""
    shorter = sides.min(axis=-1, keepdims=True)
    scaled: Sides = (2 * sides * short + shorter) // (2 * shorter)
    return scaled


class CropImage(Transform):
    """Crops the centre; of an odd margin, the smaller half is above and to the left."""

    size: Size
    """Side, or [width, height]."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the crop's size."""
        return cropped_state(state, self.size)


Ratio = Annotated[float, Bound(ge=0.01, le=100)]


class RandCropImage(_ResamplingTransform):
    """Crops a window of random area and aspect ratio and resizes it (Szegedy et al. 2015, section 6)."""

    size: Size
    """Side, or [width, height]."""
    interpolation: Interpolation | Literal["random"] = "bilinear"  # type: ignore[assignment]
    """How pixels are interpolated; `random`: bilinear for half of the images, bicubic for the others."""
    scale: tuple[Fraction, Fraction] = Field(
        (0.08, 1.0), description="share of the image's area, min and max"
    )
    ratio: tuple[Ratio, Ratio] = Field((0.75, 4 / 3), description="width / height, min and max")
    use_log_aspect: bool = Field(False, description="draw the logarithm of width / height uniformly")

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Aspect, area, left, top; with random interpolation also a coin."""
        return 4 + (self.interpolation == "random")

    @model_validator(mode="after")
    def _check_ranges(self) -> RandCropImage:
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"expected {name} as [min, max], got [{low}, {high}]")
        if self.scale[1] == 0:
            raise ValueError("expected the largest scale to be > 0")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the crop's size."""
        self._check_input(state)
        return resized_state(state, self.size)

    def resized(self, size: int) -> RandCropImage:
        """Returns the transform for another size."""
        return self.model_copy(update={"size": (size, size)})


def random_windows(
    spec: RandCropImage, sides: NDArray[np.integer], draws: NDArray[np.floating]
) -> NDArray[np.int32]:
    """Computes the windows of PaddleClas's RandCropImage.

    The aspect ratio, or its logarithm, is uniform in ``ratio`` and the share of the area uniform in
    ``scale``, both limited to what the image can hold. All positions at which the window fits are equally
    likely.

    Args:
        sides: [N, 2] heights and widths of the images.
        draws: [N, 4] uniform numbers in [0, 1): aspect, area, left, top.

    Returns:
        [N, 4] int32: top, left, height, width; within the image and not empty.
    """
    height, width = sides.astype(np.float64).T
    draw_aspect, draw_area, draw_left, draw_top = draws.astype(np.float64).T
    low, high = np.log(spec.ratio) if spec.use_log_aspect else spec.ratio
    aspect = low + (high - low) * draw_aspect
    if spec.use_log_aspect:
        aspect = np.exp(aspect)
    bound = np.minimum(width / height / aspect, height / width * aspect)
    lowest, highest = np.minimum(spec.scale[0], bound), np.minimum(spec.scale[1], bound)
    area = width * height * (lowest + (highest - lowest) * draw_area)
    cut_width = np.clip(np.floor(np.sqrt(area * aspect)), 1, width)
    cut_height = np.clip(np.floor(np.sqrt(area / aspect)), 1, height)
    left = np.floor((width - cut_width + 1) * draw_left)
    top = np.floor((height - cut_height + 1) * draw_top)
    return np.stack([top, left, cut_height, cut_width], axis=1).astype(np.int32)


@decide.register
def decide_window(spec: RandCropImage, draws: Draws, sides: Sides) -> Decisions:
    """Start (top, left) and size (height, width) of the window, [N, 2] int32 each.

    With random interpolation also whether it is bicubic, [N] int32.
    """
    windows = random_windows(spec, sides, draws[:, :4])
    bicubic = ((draws[:, 4] < 0.5).astype(np.int32),) if spec.interpolation == "random" else ()
    return np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:]), *bicubic


@sides_after.register(CropImage)
@sides_after.register(RandCropImage)
def cropped_sides(spec: CropImage | RandCropImage, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the sides of cropped images."""
    return fixed_sides(sides, spec.size)


class RandFlipImage(Transform):
    """Flips half of the images."""

    draws: ClassVar[int] = 1

    flip_code: Literal[1, 0, -1] = Field(1, description="1 left-right, 0 upside down, -1 both")

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_hwc(state)
        return state


@decide.register
def decide_flip(spec: RandFlipImage, draws: Draws, sides: Sides) -> Decisions:
    """Whether the image is flipped, [N] int32."""
    return ((draws[:, 0] < 0.5).astype(np.int32),)


class NormalizeImage(Transform):
    """Computes ``(pixel * scale - mean) / std`` per channel, in float32; optionally rounds to float16."""

    scale: Number = Field(1.0 / 255.0, description="factor applied to the pixels before mean and std")
    mean: tuple[Number, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel, after `scale`."""
    std: tuple[Annotated[float, Bound(gt=0)], ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel, after `scale`."""
    order: Literal["", "hwc", "chw"] | None = Field(
        None, description="layout of the image; '' means hwc; by default the layout that the image has"
    )
    output_fp16: bool = Field(False, description="return float16, for mixed precision")
    channel_num: Count | None = Field(
        None, description="pad with zeros to this number of channels, such as 4, which suits tensor cores"
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> NormalizeImage:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"expected mean and std of equal length, got {len(self.mean)} and {len(self.std)} values"
            )
        if self.scale == 0:
            raise ValueError("expected a scale other than 0")
        if self.channel_num not in (None, 1) and len(self.mean) == 1:
            raise ValueError("channel_num requires mean and std for each channel")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state as float32."""
        need_pixels(state)
        need_unnormalized(state)
        if state.dtype != "uint8" and "scale" not in self.model_fields_set:
            raise ValueError(f"the default scale is for 8-bit pixels, but these are {state.dtype}; set scale")
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
    """Moves the channels to the front."""

    def after(self, state: ImageState) -> ImageState:
        """Returns the state as CHW."""
        need_hwc(state)
        return replace(state, layout="CHW")
