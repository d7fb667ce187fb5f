"""An index of images whose pixels are in memory, for data sets that publish arrays instead of image files.

Decisions:
- An image is read as a BMP file, because the loaders decode files. The rows are in the order of BMP from the
  start, so reading an image only joins a header and its rows. To encode each image with Pillow took 44
  microseconds under the interpreter lock, which limited DALI to 3,900 images/s on 16 cores.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ROW_MULTIPLE = 4  # BMP pads each row to a multiple of four bytes
_FILE_HEADER = 14
_IMAGE_HEADER = 40


class PixelIndex:
    """Implements `ppcls.data.index.protocol.Index` for images in memory.

    Args:
        source: File or folder that the images were read from.
        pixels: Pixels, [N, H, W] (grey) or [N, H, W, 3] (RGB) uint8.
        labels: Label of each image, [N] int64.
    """

    def __init__(self, source: Path, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> None:
        self.source = source
        self.labels = labels
        self._rows = _bmp_rows(pixels)
        self._header = _bmp_header(pixels.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:  # noqa: ARG002 - see Index
        """Returns the file or folder, which contains all images."""
        return str(self.source)

    def where(self, position: int) -> str:
        """Returns the location of a sample, such as ``image 7``."""
        return f"image {position}"

    def read(self, position: int) -> bytes:
        """Returns the image as a BMP file."""
        rows: bytes = self._rows[position].tobytes()
        return self._header + rows


def _bmp_rows(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the pixels as BMP stores them, [N, bytes]: from the bottom row to the top, blue before red."""
    ordered = pixels[:, ::-1]
    if pixels.ndim == 4:
        ordered = ordered[..., ::-1]
    rows = ordered.reshape(*pixels.shape[:2], -1)
    padding = -rows.shape[2] % _ROW_MULTIPLE
    padded = np.pad(rows, ((0, 0), (0, 0), (0, padding)))
    return np.ascontiguousarray(padded.reshape(len(pixels), -1))


def _bmp_header(shape: tuple[int, ...]) -> bytes:
    """Returns the header of a BMP file, and the palette of grey images.

    Args:
        shape: Shape of an image: [H, W] or [H, W, 3].
    """
    height = shape[0]
    width = shape[1]
    channels = 3 if len(shape) == 3 else 1
    palette = b""
    if channels == 1:
        greys = np.arange(256, dtype=np.uint8)
        palette = np.stack([greys, greys, greys, np.zeros_like(greys)], axis=1).tobytes()
    row = width * channels + -width * channels % _ROW_MULTIPLE
    offset = _FILE_HEADER + _IMAGE_HEADER + len(palette)
    file_header = struct.pack("<2sIHHI", b"BM", offset + row * height, 0, 0, offset)
    bits = 8 * channels
    image_header = struct.pack(
        "<IiiHHIIiiII", _IMAGE_HEADER, width, height, 1, bits, 0, row * height, 0, 0, 0, 0
    )
    return file_header + image_header + palette
