"""Computes mean and standard deviation of each channel over all pixels of a dataset, exactly.

Each image's pixels and their squares are summed as 64-bit integers, and Python adds these sums as integers of
any size. So only the final result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import bad_image_error, to_bad_images
from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.index.read import Index
from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.jobs import map_on_threads

_PRECISION = 10**12  # fraction of a pixel value to which a standard deviation is computed


@dataclass(frozen=True)
class PixelStats:
    """Sums over the pixels of images with C channels, and sizes of the images.

    Attributes:
        pixels: Number of pixels.
        sums: [C] sums of the values.
        squares: [C] sums of the squared values.
        sides: [N, 2] heights and widths, after applying EXIF orientations.
        sizes: [N] bytes of the encoded images.
    """

    pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]
    sides: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def mean(self) -> tuple[float, ...]:
        """[C] means of the pixel values."""
        return tuple(total / self.pixels for total in self.sums)

    @property
    def std(self) -> tuple[float, ...]:
        """[C] population standard deviations of the pixel values."""
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
    """Decodes all images once.

    Args:
        index: The dataset.
        decoder: Decoder of the images. Pixel values are 0..255 or 0..65535, depending on its ``dtype``.
        threads: Number of threads.
        advance: Called with 1 after each image.

    Raises:
        BadImageError: An image can't be read or decoded.
    """

    def sum_image(position: int) -> _ImageSums:
        try:
            encoded = index.read(position)
            pixels = decode(decoder, encoded)
        except DecodeError as error:
            raise bad_image_error(to_bad_images(index, {position: str(error)})) from None
        wide = pixels.astype(np.uint32)  # fits the square of a 16-bit value
        return _ImageSums(
            (pixels.shape[0], pixels.shape[1]),
            len(encoded),
            pixels.sum((0, 1), dtype=np.uint64),
            (wide * wide).sum((0, 1), dtype=np.uint64),
        )

    images = []
    for _, image in map_on_threads(sum_image, range(len(index)), threads):
        images.append(image)
        advance(1)
    sides = np.array([image.sides for image in images], np.int64)
    return PixelStats(
        pixels=int(sides.prod(1).sum()),
        sums=_add_up([image.sums for image in images]),
        squares=_add_up([image.squares for image in images]),
        sides=sides,
        sizes=np.array([image.size for image in images], np.int64),
    )


def _add_up(rows: list[NDArray[np.uint64]]) -> tuple[int, ...]:
    """Adds arrays [C] as Python's integers, which do not overflow."""
    return tuple(sum(column) for column in np.stack(rows).T.tolist())
