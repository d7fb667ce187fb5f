"""An index of images whose pixels are in memory, for data sets that publish arrays instead of image files.

Decisions:
- An image is read as a binary PGM (grey) or PPM (RGB) file, because the loaders decode files. These formats
  store the pixels as they are, so reading an image only joins a header and its pixels: 1 microsecond. To
  encode each image with Pillow took 44 microseconds under the interpreter lock.
- Not as a BMP: the loader checks the header of each image, and Pillow needs 150 microseconds for the palette
  of a grey BMP. DALI was limited to 5,500 images/s by this, on 12 cores.
- DALI's loader needs no files, and takes the pixels of a whole batch, in 1 microsecond per image. Files cost
  18 microseconds, mostly for the check of the header, under the interpreter lock. With them, training on a
  GPU waited for data at 28,000 images/s.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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
        self._pixels = np.ascontiguousarray(pixels)
        kind = "P5" if pixels.ndim == 3 else "P6"
        height = pixels.shape[1]
        width = pixels.shape[2]
        self._header = f"{kind}\n{width} {height}\n255\n".encode("ascii")

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:  # noqa: ARG002 - see Index
        """Returns the file or folder, which contains all images."""
        return str(self.source)

    def where(self, position: int) -> str:
        """Returns the location of a sample, such as ``image 7``."""
        return f"image {position}"

    def read(self, position: int) -> bytes:
        """Returns the image as a binary PGM or PPM file."""
        values: bytes = self._pixels[position].tobytes()
        return self._header + values

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and number of channels (1 or 3) of every image."""
        height, width = self._pixels.shape[1:3]
        return height, width, 1 if self._pixels.ndim == 3 else 3

    def read_pixels(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the pixels of images, [N, H, W, 1] (grey) or [N, H, W, 3] (RGB).

        Args:
            positions: [N], positions of the images.
        """
        return self._pixels[positions].reshape(len(positions), *self.shape)
