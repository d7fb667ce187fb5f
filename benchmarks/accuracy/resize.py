"""Resizes images as `ResizeImage` of ppcls does, for `benchmarks.accuracy.torch_training`.

It needs only NumPy: the interpreter with PyTorch may lack OpenCV, and that of the tests lacks PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BATCH = 1000  # number of images that are resized at once, to limit the memory


def resize(pixels: NDArray[np.uint8], size: Sequence[int]) -> NDArray[np.uint8]:
    """Returns images of another size, by bilinear interpolation between neighbouring pixels (no antialias).

    Args:
        pixels: Images, [N, H, W] or [N, H, W, C].
        size: New height and width.
    """
    height, width = size
    if pixels.shape[1:3] == (height, width):
        return pixels
    resized = np.empty((len(pixels), height, width, *pixels.shape[3:]), np.uint8)
    for start in range(0, len(pixels), _BATCH):
        images = pixels[start : start + _BATCH].astype(np.float32)
        for axis, length in ((1, height), (2, width)):
            images = _interpolate(images, axis, length)
        resized[start : start + _BATCH] = np.rint(images)
    return resized


def _interpolate(images: NDArray[Any], axis: int, length: int) -> NDArray[Any]:
    """Returns images with another length of one axis."""
    old = images.shape[axis]
    positions = ((np.arange(length) + 0.5) * old / length - 0.5).clip(0, old - 1)
    before = positions.astype(np.int64)
    after = np.minimum(before + 1, old - 1)
    share = (positions - before).astype(np.float32)  # weight of the pixels in ``after``
    share = share.reshape(-1, *[1] * (images.ndim - axis - 1))
    interpolated: NDArray[Any] = images.take(before, axis) * (1 - share) + images.take(after, axis) * share
    return interpolated
