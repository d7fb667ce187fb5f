"""Decoding, resizing, cropping, mirroring and normalizing by OpenCV, Pillow and numpy."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from PIL import Image

from ppcls.data.images.decode import decode
from ppcls.data.sampling.input_size import VariableSize
from ppcls.data.transforms.numpy_ops.chain import Array, apply
from ppcls.data.transforms.specs import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.decisions import Decided, scale_to_short_side

# One thread an image: loaders work on many images at once, in threads or processes of their own.
cv2.setNumThreads(1)

_PIL = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@apply.register
def _(spec: DecodeImage, image: bytes, decided: Decided) -> Array:
    return decode(spec, image)


def resize(spec: ResizeImage | RandCropImage, image: Array, size: Array | None = None) -> Array:
    """Resizes an image [H, W, C] as ``spec`` asks; ``size`` (width, height) stands in for its own."""
    if size is not None:
        width, height = int(size[0]), int(size[1])
    elif spec.size is not None:
        width, height = spec.size
    else:
        assert isinstance(spec, ResizeImage)
        assert spec.resize_short is not None
        height, width = scale_to_short_side(np.array([image.shape[:2]]), spec.resize_short)[0].tolist()
    if spec.backend == "pil":
        return _resize_by_pillow(image, width, height, _PIL[spec.interpolation])
    return _keep_channels(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR))


def _resize_by_pillow(image: Array, width: int, height: int, filter_: Image.Resampling) -> Array:
    if image.shape[2] == 3:
        return np.asarray(Image.fromarray(image).resize((width, height), filter_))
    channels = (Image.fromarray(image[:, :, k]) for k in range(image.shape[2]))
    return np.stack([np.asarray(each.resize((width, height), filter_)) for each in channels], axis=-1)


def _keep_channels(image: Any) -> Array:
    """Returns [H, W, C], of [H, W] too: OpenCV drops a single channel."""
    return np.asarray(image).reshape(*image.shape[:2], -1)


@apply.register
def _(spec: ResizeImage, image: np.ndarray, decided: Decided) -> Array:
    return resize(spec, image)


@apply.register
def _(spec: VariableSize, image: Any, decided: Decided) -> Array:
    return apply(spec.part, image, decided[:-1])


@apply.register
def _(spec: CropImage, image: np.ndarray, decided: Decided) -> Array:
    width, height = spec.size
    if image.shape[0] < height or image.shape[1] < width:
        raise ValueError(f"a {width}x{height} crop doesn't fit an image of {image.shape[1]}x{image.shape[0]}")
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


@apply.register
def _(spec: RandCropImage, image: np.ndarray, decided: Decided) -> Array:
    (top, left), (height, width) = decided
    return resize(spec, image[top : top + height, left : left + width])


@apply.register
def _(spec: RandFlipImage, image: np.ndarray, decided: Decided) -> Array:
    return _keep_channels(cv2.flip(image, spec.flip_code)) if decided[0] else image


@apply.register
def _(spec: NormalizeImage, image: np.ndarray, decided: Decided) -> Array:
    mean, std = np.asarray(spec.mean, np.float32), np.asarray(spec.std, np.float32)
    pixels = (image.astype(np.float32) * np.float32(spec.scale) - mean) / std
    if spec.channel_num is not None:
        pixels = np.pad(pixels, [(0, 0), (0, 0), (0, spec.channel_num - pixels.shape[2])])
    return pixels.astype(np.float16) if spec.output_fp16 else pixels


@apply.register
def _(spec: ToCHWImage, image: np.ndarray, decided: Decided) -> Array:
    return image.transpose(2, 0, 1)
