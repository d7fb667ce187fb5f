"""An index of images whose pixels are in memory, for data sets that publish arrays instead of image files."""

from __future__ import annotations

import io
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
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:  # noqa: ARG002 - see Index
        """Returns the file or folder, which contains all images."""
        return str(self.source)

    def where(self, position: int) -> str:
        """Returns the location of a sample, such as ``image 7``."""
        return f"image {position}"

    def read(self, position: int) -> bytes:
        """Returns the image encoded as BMP, the format that is fastest to encode and decode."""
        from PIL import Image  # only these data sets need it

        encoded = io.BytesIO()
        Image.fromarray(self._pixels[position]).save(encoded, "BMP")
        return encoded.getvalue()
