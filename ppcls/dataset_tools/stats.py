"""What a data set is like: its classes, the images' sizes, and the numbers to normalize by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.specs import DecodeImage
from ppcls.dataset_tools.mean_std import PixelStats

_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
_TOP = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class DatasetStats:
    """What is known of a data set.

    Attributes:
        name: Where it is.
        names: [K] of the classes; their numbers where they have none.
        counts: [K] images of each.
        moments: Of their pixels, sides and bytes.
        decoder: How they were decoded.
    """

    name: str
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    moments: PixelStats
    decoder: DecodeImage

    @property
    def mean(self) -> list[float]:
        """[C] of pixels scaled to 0..1, as NormalizeImage wants it."""
        return [each / _TOP[self.decoder.dtype] for each in self.moments.mean]

    @property
    def std(self) -> list[float]:
        """[C] likewise."""
        return [each / _TOP[self.decoder.dtype] for each in self.moments.std]

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON has it."""
        sides, sizes = self.moments.sides, self.moments.sizes
        return {
            "source": self.name,
            "images": len(sides),
            "bytes": int(sizes.sum()),
            "pixels": self.moments.pixels,
            "classes": [
                {"label": label, "name": name, "images": count}
                for label, (name, count) in enumerate(zip(self.names, self.counts.tolist(), strict=True))
            ],
            "height": _spread(sides[:, 0]),
            "width": _spread(sides[:, 1]),
            "short_side": _spread(sides.min(1)),
            "bytes_an_image": _spread(sizes),
            "channels": self.decoder.channels,
            "dtype": self.decoder.dtype,
            "mean": self.mean,
            "std": self.std,
        }

    def describe(self) -> str:
        """Returns what people want to know, and the lines for a config."""
        found = self.as_dict()
        least, most = int(self.counts.min()), int(self.counts.max())
        megabytes = found["bytes"] / 1e6
        lines = [
            f"{self.name}: {found['images']} images of {len(self.names)} classes, {megabytes:.1f} MB",
            f"images a class: {least} to {most}, median {np.median(self.counts):g}",
            *(
                f"{key.replace('_', ' ')}: {_range(found[key])}"
                for key in ("width", "height", "short_side", "bytes_an_image")
            ),
            "mean and standard deviation of each channel, over all pixels:",
            "- NormalizeImage:",
            f"    scale: 1.0/{_TOP[self.decoder.dtype]}.0",
            f"    mean: [{_numbers(self.mean)}]",
            f"    std: [{_numbers(self.std)}]",
        ]
        return "\n".join(lines)


def collect_stats(
    name: str, labels: NDArray[Any], names: Sequence[str], moments: PixelStats, decoder: DecodeImage
) -> DatasetStats:
    """Counts the classes.

    Args:
        name: Where the data set is.
        labels: [N] of its images; or [N, K], 0 or 1 for each class, and an image counts for several.
        names: [K] of the classes; none where only numbers are known.
        moments: Of the images.
        decoder: How they were decoded.
    """
    if labels.ndim == 2:
        counts = labels.sum(axis=0, dtype=np.int64)
    else:
        counts = np.bincount(labels, minlength=len(names))
    return DatasetStats(name, tuple(names) or tuple(map(str, range(len(counts)))), counts, moments, decoder)


def _spread(values: NDArray[np.int64]) -> dict[str, float]:
    """Returns percentiles and mean."""
    found = dict(zip(map(str, _PERCENTILES), np.percentile(values, _PERCENTILES).tolist(), strict=True))
    return {**found, "mean": float(values.mean())}


def _range(spread: dict[str, float]) -> str:
    return f"{spread['0']:.0f} to {spread['100']:.0f}, median {spread['50']:.0f}"


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{each:.4f}" for each in values)
