"""Small pictures for the report."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_SIDE = 128


@dataclass(frozen=True)
class Picture:
    """A picture of a sample, for the report.

    Attributes:
        pixels: [H, W, C] uint8, RGB if C is 3.
        caption: What the image shows.
        title: Further facts, such as its file.
    """

    pixels: NDArray[np.uint8]
    caption: str
    title: str = ""


class PictureSource:
    """Provides the pictures of a report. This base class has none."""

    def augmented(self) -> list[Picture]:
        """Returns the latest training images, as the model sees them."""
        return []

    def evaluated(self, position: int) -> Picture | None:  # noqa: ARG002
        """Returns a sample of the evaluated data set, or None if it cannot be read."""
        return None

    def explained(self, position: int, class_id: int) -> Picture | None:  # noqa: ARG002
        """Returns an evaluated sample under the heat map of a class of the best model, or None without one.

        Raises:
            UserError: If the best model has no heat maps.
        """
        return None


def thumbnail(pixels: NDArray[np.uint8]) -> Image.Image:
    """Returns [H, W, C] uint8 as an image of at most 128 px per side: grey if C is below 3, else RGB."""
    channels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    image = Image.fromarray(np.ascontiguousarray(channels))
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return image


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Returns [H, W, C] uint8 as a ``data:`` address of a JPEG of at most 128 px per side."""
    file = io.BytesIO()
    thumbnail(pixels).save(file, format="JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
