"""Pictures of samples for the report, and their thumbnails."""

from __future__ import annotations

import base64
import io
import math
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
        caption: Text below the picture, such as the class.
        title: Text that is shown when the mouse is over the picture, such as the file.
    """

    pixels: NDArray[np.uint8]
    caption: str
    title: str = ""


@dataclass(frozen=True)
class AuditGroup:
    """Pictures that belong together, and what is wrong with them.

    Attributes:
        about: What this kind of finding means.
        text: What was found.
        pictures: Some of the pictures.
    """

    about: str
    text: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class AuditPart:
    """What the report shows about the images of the data set.

    Attributes:
        summary: Numbers of images and findings, as a sentence.
        groups: Findings, the most important first.
    """

    summary: str
    groups: tuple[AuditGroup, ...]


class PictureSource:
    """Base class of sources of pictures for a report. Its methods return no pictures."""

    @property
    def seconds_left(self) -> float:
        """Number of seconds for heat maps and the audit; negative if there is no time."""
        return math.inf

    def augmented(self) -> list[Picture]:
        """Returns the latest training images, after all transforms."""
        return []

    def evaluated(self, position: int) -> Picture | None:  # noqa: ARG002
        """Returns a sample of the evaluated data set; None if it cannot be read."""
        return None

    def name(self, position: int) -> str:
        """Returns the path of a sample of the evaluated data set."""
        return f"sample {position}"

    def audit(self, seconds: float) -> AuditPart | None:  # noqa: ARG002
        """Returns problems of images and labels, found within ``seconds``; None without an audit.

        Runs in a thread of its own.

        Raises:
            MemoryError: The images do not fit into memory.
        """
        return None

    def explained(self, position: int, class_id: int) -> Picture | None:  # noqa: ARG002
        """Returns an evaluated sample blended with a heat map of the best model; None without a best model.

        Args:
            position: Position of the sample in the evaluated data set.
            class_id: Class whose heat map is shown.

        Raises:
            UserError: The best model does not support heat maps.
        """
        return None


def thumbnail(pixels: NDArray[np.uint8]) -> Image.Image:
    """Returns a thumbnail of at most 128 pixels per side.

    Args:
        pixels: [H, W, C] uint8. With fewer than three channels, the thumbnail is grey, otherwise RGB.
    """
    channels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    image = Image.fromarray(np.ascontiguousarray(channels))
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return image


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Returns a thumbnail as a ``data:`` URI with a JPEG of at most 128 pixels per side.

    Args:
        pixels: See `thumbnail`.
    """
    file = io.BytesIO()
    thumbnail(pixels).save(file, format="JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
