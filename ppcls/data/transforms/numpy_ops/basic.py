"""Implements decoding, resizing, cropping, flipping and normalizing with OpenCV, Pillow and NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from PIL import Image

from ppcls.data.images.decode import decode
from ppcls.data.images.npy import read_npy
from ppcls.data.transforms.numpy_ops.chain import Array, apply, crop
from ppcls.data.transforms.specs.basic import (
    CropImage,
    DecodeImage,
    DecodeNumpy,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
    scale_to_short_side,
)
from ppcls.data.transforms.specs.chain import TransformsOfModel
from ppcls.data.transforms.specs.decisions import Decisions
from ppcls.data.transforms.specs.fuse import VariableSize

# One thread per image, because loaders process many images at the same time, in their own threads or
# processes.
cv2.setNumThreads(1)

_PIL_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@apply.register
def decode_image(spec: DecodeImage, image: bytes, decisions: Decisions) -> Array:
    return decode(spec, image)


@apply.register
def decode_numpy(spec: DecodeNumpy, image: bytes, decisions: Decisions) -> Array:
    return read_npy(spec, image)


def resize(spec: ResizeImage | RandCropImage, image: Array, size: Array | None = None) -> Array:
    """Resizes an image.

    Args:
        spec: Size, interpolation and backend.
        image: Image, [H, W, C].
        size: Size (width, height) that overrides the size in ``spec``; None for the size in ``spec``.
    """
    if size is not None:
        width = int(size[0])
        height = int(size[1])
    elif spec.size is not None:
        width, height = spec.size
    else:
        assert isinstance(spec, ResizeImage)
        assert spec.resize_short is not None
        height, width = scale_to_short_side(np.array([image.shape[:2]]), spec.resize_short)[0].tolist()
    if spec.backend == "pil":
        return _resize_by_pillow(image, width, height, _PIL_FILTERS[spec.interpolation])
    return _keep_channels(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR))


def _resize_by_pillow(image: Array, width: int, height: int, resampling: Image.Resampling) -> Array:
    if image.shape[2] == 3:
        return np.asarray(Image.fromarray(image).resize((width, height), resampling))
    channels = (Image.fromarray(image[:, :, k]) for k in range(image.shape[2]))
    return np.stack(
        [np.asarray(channel.resize((width, height), resampling)) for channel in channels], axis=-1
    )


def _keep_channels(image: Any) -> Array:
    """Returns the image as [H, W, C]. OpenCV returns [H, W] for a single channel."""
    return np.asarray(image).reshape(*image.shape[:2], -1)


@apply.register
def resize_image(spec: ResizeImage, image: np.ndarray, decisions: Decisions) -> Array:
    return resize(spec, image)


@apply.register
def apply_sized(spec: VariableSize, image: Any, decisions: Decisions) -> Array:
    return apply(spec.part, image, decisions[:-1])


@apply.register
def leave_to_model(spec: TransformsOfModel, image: np.ndarray, decisions: Decisions) -> Array:
    return image


@apply.register
def crop_image(spec: CropImage, image: np.ndarray, decisions: Decisions) -> Array:
    width, height = spec.size
    return crop(image, (image.shape[0] - height) // 2, (image.shape[1] - width) // 2, spec.size)


@apply.register
def rand_crop_image(spec: RandCropImage, image: np.ndarray, decisions: Decisions) -> Array:
    (top, left), (height, width), *bicubic = decisions
    if bicubic:
        spec = spec.model_copy(update={"interpolation": "bicubic" if bicubic[0] else "bilinear"})
    return resize(spec, image[top : top + height, left : left + width])


@apply.register
def flip_image(spec: RandFlipImage, image: np.ndarray, decisions: Decisions) -> Array:
    return _keep_channels(cv2.flip(image, spec.flip_code)) if decisions[0] else image


@apply.register
def normalize_image(spec: NormalizeImage, image: np.ndarray, decisions: Decisions) -> Array:
    if image.dtype == np.uint8:  # a lookup table is three times as fast
        table = _normalize_bytes(spec.scale, spec.mean, spec.std, image.shape[2])
        pixels: Array = np.asarray(cv2.LUT(image, table)).reshape(image.shape)
    else:
        pixels = _normalize(image, spec.scale, spec.mean, spec.std)
    if spec.channel_num is not None:
        pixels = np.pad(pixels, [(0, 0), (0, 0), (0, spec.channel_num - pixels.shape[2])])
    return pixels.astype(np.float16) if spec.output_fp16 else pixels


def _normalize(pixels: Array, scale: float, mean: Sequence[float], std: Sequence[float]) -> Array:
    """Returns ``(pixels * scale - mean) / std`` in float32. The channels are the last axis."""
    scaled = pixels.astype(np.float32) * np.float32(scale)
    return np.asarray((scaled - np.asarray(mean, np.float32)) / np.asarray(std, np.float32))


@lru_cache(maxsize=16)
def _normalize_bytes(scale: float, mean: tuple[float, ...], std: tuple[float, ...], channels: int) -> Array:
    """Returns the normalized values of the bytes 0 to 255, [1, 256, channels] float32."""
    values = np.arange(256, dtype=np.uint8)[None, :, None].repeat(channels, axis=2)
    return _normalize(values, scale, mean, std)


@apply.register
def to_chw(spec: ToCHWImage, image: np.ndarray, decisions: Decisions) -> Array:
    return image.transpose(2, 0, 1)
