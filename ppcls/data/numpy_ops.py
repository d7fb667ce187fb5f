"""How numpy, OpenCV and Pillow do each transform: the reference that other backends must match."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppcls.config.transform import Transform
from ppcls.data.decisions import Decided, decide, scale_to_short_side
from ppcls.data.transforms import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    Op,
    RandCropImage,
    RandFlipImage,
    ResizeImage,
    ToCHWImage,
)

# One thread an image: loaders work on many images at once, in threads or processes of their own.
cv2.setNumThreads(1)

Array = NDArray[Any]

_PIL = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class DecodeError(ValueError):
    """Bytes that are not an image."""


def run(ops: Sequence[Op], encoded: bytes, draws: NDArray[np.float32]) -> Array:
    """Takes one image through a chain.

    Args:
        ops: The chain.
        encoded: The file's bytes.
        draws: The sample's uniform numbers, [count_draws(ops)] float32.

    Returns:
        [H, W, C] or [C, H, W], contiguous.

    Raises:
        DecodeError: The bytes are not an image.
        ValueError: A crop is larger than the image.
    """
    image: Any = encoded
    for op in ops:
        image = apply_drawn(op.spec, image, draws[op.slot : op.slot + op.spec.draws])
    return np.ascontiguousarray(image)


def apply_drawn(spec: Transform, image: Any, draws: NDArray[np.float32]) -> Array:
    """Decides by [spec.draws] uniform numbers what a transform does to an image, and applies it."""
    if not spec.draws:
        return apply(spec, image, ())
    decided = decide(spec, draws[None], np.array([image.shape[:2]]))
    return apply(spec, image, tuple(each[0] for each in decided))


@singledispatch
def apply(spec: Transform, image: Any, decided: Decided) -> Array:
    """Applies one transform to an image.

    Args:
        spec: The transform.
        image: [H, W, C] uint8 or float32; a file's bytes for DecodeImage.
        decided: What `ppcls.data.decisions.decide` says of this image.
    """
    raise NotImplementedError(f"numpy_ops knows no {spec.kind}")


@apply.register
def _(spec: DecodeImage, image: bytes, decided: Decided) -> Array:
    if not image:
        raise DecodeError("the file is empty")
    try:
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:  # such as more pixels than OpenCV takes
        raise DecodeError(f"OpenCV refuses to decode it: {error.err}") from None
    if pixels is None:
        raise DecodeError("not an image that can be decoded")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if spec.to_rgb else pixels)


def resize(spec: ResizeImage | RandCropImage, image: Array) -> Array:
    """Resizes an image [H, W, C] to the size that ``spec`` asks for, by its backend."""
    if spec.size is not None:
        width, height = spec.size
    else:
        assert isinstance(spec, ResizeImage)
        assert spec.resize_short is not None
        height, width = scale_to_short_side(np.array([image.shape[:2]]), spec.resize_short)[0].tolist()
    if spec.backend == "pil":
        return np.asarray(Image.fromarray(image).resize((width, height), _PIL[spec.interpolation]))
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR))


@apply.register
def _(spec: ResizeImage, image: np.ndarray, decided: Decided) -> Array:
    return resize(spec, image)


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
    return cv2.flip(image, spec.flip_code) if decided[0] else image


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
