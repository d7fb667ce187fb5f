"""Describes a dataset: classes, image sizes, and the mean and standard deviation for normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.mean_std import PixelStats
from ppcls.errors import counted

_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
_MAX_VALUE = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class DatasetStats:
    """Statistics of a dataset.

    Attributes:
        name: Path or config key of the dataset.
        names: [K] class names, or class ids if there are no names.
        counts: [K] numbers of images per class.
        pixels: Statistics of pixels, sides and file sizes.
        decoder: Decoder of the images.
    """

    name: str
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    pixels: PixelStats
    decoder: DecodeImage

    @property
    def mean(self) -> list[float]:
        """Means of the channels, [C], for NormalizeImage. Pixel values are scaled to 0..1."""
        return [value / _MAX_VALUE[self.decoder.dtype] for value in self.pixels.mean]

    @property
    def std(self) -> list[float]:
        """Standard deviations of the channels, [C], for NormalizeImage. Pixel values are scaled to 0..1."""
        return [value / _MAX_VALUE[self.decoder.dtype] for value in self.pixels.std]

    def as_dict(self) -> dict[str, Any]:
        """Returns all statistics as a dict of JSON values."""
        sides = self.pixels.sides
        sizes = self.pixels.sizes
        return {
            "source": self.name,
            "images": len(sides),
            "bytes": int(sizes.sum()),
            "pixels": self.pixels.pixels,
            "classes": [
                {"label": label, "name": name, "images": count}
                for label, (name, count) in enumerate(zip(self.names, self.counts.tolist(), strict=True))
            ],
            "height": _spread(sides[:, 0]),
            "width": _spread(sides[:, 1]),
            "short_side": _spread(sides.min(1)),
            "bytes_per_image": _spread(sizes),
            "channels": self.decoder.channels,
            "dtype": self.decoder.dtype,
            "mean": self.mean,
            "std": self.std,
        }

    def describe(self) -> str:
        """Returns the main statistics as text, including NormalizeImage in YAML."""
        values = self.as_dict()
        least = int(self.counts.min())
        most = int(self.counts.max())
        megabytes = values["bytes"] / 1e6
        lines = [
            f"{self.name}: {counted(values['images'], 'image')} of {counted(len(self.names), 'class')}, "
            f"{megabytes:.1f} MB",
            f"images per class: {least} to {most}, median {np.median(self.counts):g}",
            *(
                f"{text}: {_range(values[key])}"
                for key, text in (
                    ("width", "width"),
                    ("height", "height"),
                    ("short_side", "short side"),
                    ("bytes_per_image", "bytes per image"),
                )
            ),
            "mean and standard deviation of each channel, over all pixels:",
            "- NormalizeImage:",
            f"    scale: 1.0/{_MAX_VALUE[self.decoder.dtype]}.0",
            f"    mean: [{_numbers(self.mean)}]",
            f"    std: [{_numbers(self.std)}]",
        ]
        return "\n".join(lines)


def collect_stats(
    name: str, labels: NDArray[Any], names: Sequence[str], pixels: PixelStats, decoder: DecodeImage
) -> DatasetStats:
    """Counts the images per class, and returns all statistics.

    Args:
        name: Path or config key of the dataset.
        labels: [N] class ids; or [N, K], 0 or 1 for each class. An image with several classes counts for each
            of them.
        names: [K] class names, or empty if there are no names.
        pixels: Statistics of pixels, sides and file sizes.
        decoder: Decoder of the images.
    """
    if labels.ndim == 2:
        counts = labels.sum(axis=0, dtype=np.int64)
    else:
        counts = np.bincount(labels, minlength=len(names))
    return DatasetStats(name, tuple(names) or tuple(map(str, range(len(counts)))), counts, pixels, decoder)


def _spread(values: NDArray[np.int64]) -> dict[str, float]:
    """Returns the mean and percentiles of values, keyed by ``mean`` and the percentage, such as ``50``."""
    percentiles = dict(zip(map(str, _PERCENTILES), np.percentile(values, _PERCENTILES).tolist(), strict=True))
    return {**percentiles, "mean": float(values.mean())}


def _range(spread: dict[str, float]) -> str:
    return f"{spread['0']:.0f} to {spread['100']:.0f}, median {spread['50']:.0f}"


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
