"""Small pictures within a page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_SIDE = 128


@dataclass(frozen=True)
class Picture:
    """An image as a person sees it.

    Attributes:
        pixels: [H, W, C] uint8, RGB where C is 3.
        caption: What it is.
        title: More about it, such as its file.
    """

    pixels: NDArray[np.uint8]
    caption: str
    title: str = ""


class Pictures(Protocol):
    """Gives the pictures of a run's report."""

    def augmented(self) -> list[Picture]:
        """Returns training images as the model saw them, the latest that were kept."""

    def evaluated(self, position: int) -> Picture | None:
        """Returns a sample of the evaluated dataset; None where it can't be read."""


class NoPictures:
    """Pictures of a run that has none."""

    def augmented(self) -> list[Picture]:
        """Returns none."""
        return []

    def evaluated(self, position: int) -> Picture | None:  # noqa: ARG002
        """Returns none."""
        return None


def small(pixels: NDArray[np.uint8]) -> Image.Image:
    """Returns [H, W, C] uint8 as an image of at most 128 px a side: grey for C below 3, else RGB."""
    image = Image.fromarray(
        np.ascontiguousarray(pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0])
    )
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return image


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Returns [H, W, C] uint8 as a JPEG of at most 128 px a side, as a ``data:`` address."""
    file = io.BytesIO()
    small(pixels).save(file, format="JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
