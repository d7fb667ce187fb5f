"""Computes the mean and standard deviation of each channel over all pixels of a dataset.

The sums of pixels and of squared pixels are exact. For each image, they are computed without rounding, and
Python adds them as integers of any size. So only the final results are rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.jobs import map_on_threads

_BLOCK = 1 << 21  # number of pixels; the sum of their squared 16-bit values is exact in float64
_PRECISION = 10**12  # standard deviations are computed in units of 1 / _PRECISION


@dataclass(frozen=True)
class PixelStats:
    """Sums over the pixels of images with C channels, and sizes of the images.

    Attributes:
        pixels: Number of pixels of all images.
        sums: [C], sum of the pixel values of each channel.
        squares: [C], sum of the squared pixel values of each channel.
        sides: [N, 2], heights and widths after applying the EXIF orientation.
        sizes: [N], sizes of the encoded images in bytes.
        bad: Reasons why images could not be read, by their positions. All other attributes ignore them.
    """

    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]
    sides: NDArray[np.int64]
    sizes: NDArray[np.int64]
    bad: dict[int, str] = field(default_factory=dict)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of the pixel values of each channel, [C]."""
        return tuple(total / self.pixels for total in self.sums)

    @property
    def std(self) -> tuple[float, ...]:
        """Population standard deviation of the pixel values of each channel, [C]."""
        return tuple(
            isqrt((self.pixels * squares - total**2) * _PRECISION**2) / (self.pixels * _PRECISION)
            for total, squares in zip(self.sums, self.squares, strict=True)
        )


@dataclass(frozen=True)
class _ImageSums:
    sides: tuple[int, int]
    size: int
    sums: NDArray[np.uint64]
    squares: NDArray[np.uint64]


def compute_mean_std(
    index: Index, decoder: DecodeImage, threads: int, advance: Callable[[int], object]
) -> PixelStats:
    """Decodes all images, and returns the statistics of those that can be read.

    Args:
        index: Samples of the dataset.
        decoder: Decoder of the images. Its ``dtype`` determines the range of pixel values, 0..255 or
            0..65535.
        threads: Number of threads.
        advance: Called with 1 after each image.

    Raises:
        BadImageError: No image can be read and decoded. The message describes the first one.
    """

    def sum_image(position: int) -> _ImageSums | str:
        try:
            encoded = index.read(position)
            pixels = decode(decoder, encoded)
        except DecodeError as error:
            return str(error)
        sums, squares = _sum_pixels(pixels.reshape(-1, decoder.channels))
        return _ImageSums((pixels.shape[0], pixels.shape[1]), len(encoded), sums, squares)

    images = []
    bad = {}
    for position, image in map_on_threads(sum_image, range(len(index)), threads):
        if isinstance(image, str):
            bad[position] = image
        else:
            images.append(image)
        advance(1)
    if not images:
        first = dict(list(bad.items())[:1])
        raise bad_image_error(to_bad_images(index, first))
    sides = np.array([image.sides for image in images], np.int64)
    return PixelStats(
        pixels=int(sides.prod(1).sum()),
        sums=_add_up([image.sums for image in images]),
        squares=_add_up([image.squares for image in images]),
        sides=sides,
        sizes=np.array([image.size for image in images], np.int64),
        bad=bad,
    )


def _sum_pixels(pixels: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Returns the sum and the sum of squares of each channel of ``pixels``, [N, C]; both are [C] uint64."""
    sums, squares = (np.zeros(pixels.shape[1], np.uint64) for _ in range(2))
    for begin in range(0, len(pixels), _BLOCK):
        block = np.ascontiguousarray(pixels[begin : begin + _BLOCK].T).astype(np.float64)
        sums += block.sum(1).astype(np.uint64)
        squares += np.einsum("cn,cn->c", block, block).astype(np.uint64)
    return sums, squares


def _add_up(rows: list[NDArray[np.uint64]]) -> tuple[int, ...]:
    """Returns the sum of arrays [C]. Adds Python integers, which do not overflow."""
    return tuple(sum(column) for column in np.stack(rows).T.tolist())
