"""Borders, windows and turns by OpenCV and numpy."""

from __future__ import annotations

import cv2
import numpy as np

from ppcls.data.transforms.numpy_ops.chain import Array, apply
from ppcls.data.transforms.specs.decisions import Decided
from ppcls.data.transforms.specs.geometry import Pad, RandomCropImage, RandomRot90, RandomRotation

_INTERPOLATION = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR}
_AT_ONCE = 4  # channels that OpenCV knows a border's colour for


@apply.register
def _(spec: Pad, image: np.ndarray, decided: Decided) -> Array:
    left, top, right, bottom = spec.padding
    if spec.padding_mode != "constant":
        return np.pad(image, ((top, bottom), (left, right), (0, 0)), spec.padding_mode)
    height, width, channels = image.shape
    padded = np.empty([height + top + bottom, width + left + right, channels], image.dtype)
    padded[:] = np.asarray(spec.fill, image.dtype)
    padded[top : top + height, left : left + width] = image
    return padded


@apply.register
def _(spec: RandomCropImage, image: np.ndarray, decided: Decided) -> Array:
    width, height = spec.size
    if image.shape[0] < height or image.shape[1] < width:
        raise ValueError(f"a {width}x{height} crop doesn't fit an image of {image.shape[1]}x{image.shape[0]}")
    top, left = decided[0]
    return image[top : top + height, left : left + width]


@apply.register
def _(spec: RandomRotation, image: np.ndarray, decided: Decided) -> Array:
    (angle,) = decided
    if angle == 0:
        return image
    height, width, channels = image.shape
    pixels = image.astype(np.float32) if image.dtype == np.float16 else image  # OpenCV knows no float16
    # OpenCV counts from the centre of the first pixel.
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), float(angle), 1.0)
    turned = [
        cv2.warpAffine(
            pixels[:, :, begin : begin + _AT_ONCE],
            matrix,
            (width, height),
            flags=_INTERPOLATION[spec.interpolation],
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=[spec.fill] * _AT_ONCE,
        ).reshape(height, width, -1)
        for begin in range(0, channels, _AT_ONCE)
    ]
    whole = turned[0] if len(turned) == 1 else np.concatenate(turned, axis=2)
    return whole.astype(image.dtype, copy=False)


@apply.register
def _(spec: RandomRot90, image: np.ndarray, decided: Decided) -> Array:
    return np.rot90(image, int(decided[0]) // 90)
