"""What nearly every chain is made of: decoding, resizing, cropping, mirroring, normalizing."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ppcls.config.base.fields import Bound, Count, Fraction, Number, expected
from ppcls.config.sections.transform import Dtype, ImageState, Transform

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]


def need_pixels(state: ImageState) -> None:
    """Raises ValueError where it is not decoded."""
    if state.encoded:
        raise ValueError("the image is not decoded yet; put DecodeImage before it")


def need_hwc(state: ImageState) -> None:
    """Raises ValueError where it is not an image [H, W, C]."""
    need_pixels(state)
    if state.layout != "HWC":
        raise ValueError("works on HWC images; put it before ToCHWImage")


def need_unnormalized(state: ImageState) -> None:
    """Raises ValueError where NormalizeImage has been at its pixels."""
    if state.normalized:
        raise ValueError("works on images as they are decoded; put it before NormalizeImage")


def need_8_bit(state: ImageState) -> None:
    """Raises ValueError where its pixels are not 8-bit."""
    if state.normalized:
        raise ValueError("works on 8-bit images; put it before NormalizeImage")
    if state.dtype != "uint8":
        raise ValueError(f"works on 8-bit images, and these are {state.dtype}; decode to dtype: uint8")


def _width_height(value: Any) -> Any:
    """Reads ``224`` or ``[224, 192]`` (width, height, PaddleClas's order)."""
    sides = value if isinstance(value, (list, tuple)) else (value, value)
    if len(sides) != 2 or any(
        isinstance(each, bool) or not isinstance(each, int) or each <= 0 for each in sides
    ):
        raise expected("an integer > 0, or [width, height]", value)
    return tuple(sides)


Size = Annotated[tuple[int, int], BeforeValidator(_width_height)]


def cut_state(state: ImageState, size: tuple[int, int]) -> ImageState:
    """Returns the state of a window of ``size`` (width, height), or raises where it might not fit."""
    width, height = size
    if state.size is not None:
        fits = height <= state.size[0] and width <= state.size[1]
        found = f"{state.size[1]}x{state.size[0]}"
    else:
        fits = state.shorter is not None and max(width, height) <= state.shorter
        found = f"images with a shorter side of {state.shorter}" if state.shorter else "images of any size"
    if not fits:
        raise ValueError(f"a {width}x{height} crop doesn't fit {found}; resize before it")
    return replace(state, size=(height, width), shorter=min(height, width))


class DecodeImage(Transform):
    """Decodes JPEG, PNG, TIFF, BMP, WebP or JPEG 2000, turned upright as its EXIF orientation says."""

    to_rgb: bool = Field(True, description="RGB order; False gives BGR")
    channel_first: Literal[False] = Field(False, description="use ToCHWImage for CHW")
    channels: Count = Field(
        3, description="3 makes colours of grey, palette and alpha; any other number must be the file's own"
    )
    dtype: Literal["uint8", "uint16"] = Field(
        "uint8", description="depth of the pixels; a file of the other depth is scaled, 255 to 65535"
    )
    max_pixels: Count = Field(
        100_000_000, description="an image of more pixels (width x height) is refused before it is decoded"
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


class _Resampling(Transform):
    """How pixels are interpolated."""

    interpolation: Interpolation = "bilinear"
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
    def _check_pair(self) -> _Resampling:
        if self.backend == "cv2" and self.interpolation != "bilinear":
            raise ValueError(f"cv2's {self.interpolation} sampling is its own; use backend: pil, or bilinear")
        return self

    def _need_pixels_to_resample(self, state: ImageState) -> None:
        need_hwc(state)
        need_unnormalized(state)
        if self.backend == "pil":
            need_8_bit(state)


class ResizeImage(_Resampling):
    """Resizes to ``size``, or so that the shorter side becomes ``resize_short``."""

    size: Size | None = None
    resize_short: Count | None = None

    @model_validator(mode="after")
    def _check_one(self) -> ResizeImage:
        if (self.size is None) == (self.resize_short is None):
            raise ValueError("expected either size or resize_short")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the new size."""
        self._need_pixels_to_resample(state)
        if self.size is not None:
            width, height = self.size
            return replace(state, size=(height, width), shorter=min(height, width))
        return replace(state, size=None, shorter=self.resize_short)

    def resized(self, size: int) -> ResizeImage | None:
        """Returns the transform for another size; None where only the shorter side is given."""
        return None if self.size is None else self.model_copy(update={"size": (size, size)})


class CropImage(Transform):
    """Cuts the centre; an odd margin leaves the smaller half above and to the left."""

    size: Size

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the crop's size."""
        need_hwc(state)
        return cut_state(state, self.size)


Ratio = Annotated[float, Bound(ge=0.01, le=100)]


class RandCropImage(_Resampling):
    """Cuts a window of random area and aspect ratio and resizes it (Szegedy et al. 2015, section 6)."""

    draws: ClassVar[int] = 4

    size: Size
    scale: tuple[Fraction, Fraction] = Field(
        (0.08, 1.0), description="share of the image's area, min and max"
    )
    ratio: tuple[Ratio, Ratio] = Field((0.75, 4 / 3), description="width / height, min and max")

    @model_validator(mode="after")
    def _check_ranges(self) -> RandCropImage:
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"expected {name} as [min, max], got [{low}, {high}]")
        if self.scale[1] == 0:
            raise ValueError("expected a largest scale > 0")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state with the crop's size."""
        self._need_pixels_to_resample(state)
        width, height = self.size
        return replace(state, size=(height, width), shorter=min(height, width))

    def resized(self, size: int) -> RandCropImage:
        """Returns the transform for another size."""
        return self.model_copy(update={"size": (size, size)})


class RandFlipImage(Transform):
    """Mirrors every second image."""

    draws: ClassVar[int] = 1

    flip_code: Literal[1, 0, -1] = Field(1, description="1 left-right, 0 upside down, -1 both")

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged."""
        need_hwc(state)
        return state


class NormalizeImage(Transform):
    """Computes ``(pixel * scale - mean) / std`` per channel, in float32; rounds to float16 where asked."""

    scale: Number = Field(1.0 / 255.0, description="factor on the pixels before mean and std")
    mean: tuple[Number, ...] = (0.485, 0.456, 0.406)
    std: tuple[Annotated[float, Bound(gt=0)], ...] = (0.229, 0.224, 0.225)
    order: Literal["", "hwc", "chw"] | None = Field(
        None, description="layout of the image; '' and hwc are the same; by default whatever it has"
    )
    output_fp16: bool = Field(False, description="hand over float16, for mixed precision")
    channel_num: Count | None = Field(
        None, description="fill up to so many channels with zeros, such as 4, which suit tensor cores"
    )

    @model_validator(mode="after")
    def _check_lengths(self) -> NormalizeImage:
        if len(self.mean) != len(self.std):
            raise ValueError(f"expected as many std as mean, got {len(self.std)} and {len(self.mean)}")
        if self.scale == 0:
            raise ValueError("expected a scale other than 0")
        if self.channel_num not in (None, 1) and len(self.mean) == 1:
            raise ValueError("with channel_num, give mean and std for each channel")
        return self

    def after(self, state: ImageState) -> ImageState:
        """Returns the state as float32."""
        need_pixels(state)
        need_unnormalized(state)
        if state.dtype != "uint8" and "scale" not in self.model_fields_set:
            raise ValueError(f"scale is by default for 8-bit pixels, and these are {state.dtype}; set scale")
        if len(self.mean) not in (1, state.channels):
            raise ValueError(f"expected 1 or {state.channels} values in mean and std, got {len(self.mean)}")
        if self.order is not None and (self.order or "hwc").upper() != state.layout:
            raise ValueError(f"order is '{self.order}', but the image is {state.layout}; set order: ''")
        filled = 2 ** (state.channels - 1).bit_length()
        if self.channel_num not in (None, state.channels, filled):
            raise ValueError(
                f"expected channel_num {state.channels} or the next power of two, {filled}, "
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
