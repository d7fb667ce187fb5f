"""Compares the transforms of a config with the preprocessing that pretrained weights expect."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs.basic import CropImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError
from ppcls.weights.hub import PREFIX, fetch_from_hub
from ppcls.zoo import ZOO, architecture, weights_folders

_PIXEL = 1 / 255  # factor of `NormalizeImage` that maps pixels to 0..1
_RATIO_TOLERANCE = 0.02  # allowed difference of crop ratios, because sides are rounded to pixels


class Preprocessing(NamedTuple):
    """Preprocessing of the images with which weights were trained and evaluated.

    Attributes:
        mean: Mean of the pixels of each channel, 0..1.
        std: Standard deviation of the pixels of each channel, 0..1.
        crop_ratio: Side of the centre crop, relative to the short side of the resized image.
        interpolation: Interpolation of the resizing.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_ratio: float
    interpolation: str


def compare_preprocessing(
    chains: Mapping[str, Sequence[Transform]], architecture_name: str, source: str
) -> list[str]:
    """Compares lists of transforms with the preprocessing that initial weights expect.

    Args:
        chains: Lists of transforms, by the section of the config, see `Config.chains`.
        architecture_name: Name of the architecture.
        source: The weights: a file, the name of an architecture, or a model of the Hugging Face Hub, whose
            ``config.json`` is read.

    Returns:
        One warning if they differ, else an empty list.
    """
    expected = _expected_preprocessing(architecture_name, source)
    if expected is None:
        return []
    differences = list(dict.fromkeys(_differences(chains, expected)))
    if not differences:
        return []
    return [f"warning: {source} expects other images: {'; '.join(differences)}"]


def _expected_preprocessing(name: str, source: str) -> Preprocessing | None:
    """Returns the preprocessing that weights expect; None if it is unknown."""
    if source.startswith(PREFIX):
        return _read_hub(source)
    entry = architecture(source if source in ZOO else name)
    path = Path(source)
    published = (
        source in ZOO or path.parent in weights_folders() or (entry.package and path == entry.weights_file())
    )
    return Preprocessing(entry.mean, entry.std, entry.crop_ratio, entry.interpolation) if published else None


def _read_hub(source: str) -> Preprocessing | None:
    """Returns the preprocessing in the ``config.json`` of a model on the Hugging Face Hub.

    Returns None if the file is missing or has no complete preprocessing.
    """
    try:
        content: Any = json.loads(fetch_from_hub(source, "config.json").read_bytes())
        published = content["pretrained_cfg"]
        mean, std = (tuple(float(value) for value in published[key]) for key in ("mean", "std"))
        return Preprocessing(mean, std, float(published["crop_pct"]), str(published["interpolation"]))
    except (UserError, ValueError, KeyError, TypeError):
        return None


def _differences(chains: Mapping[str, Sequence[Transform]], expected: Preprocessing) -> Iterator[str]:
    """Yields the expected transforms that the config does not have, with their paths in the config."""
    for place, specs in chains.items():
        for spec in specs:
            if isinstance(spec, NormalizeImage) and len(spec.mean) == len(expected.mean):
                pixels = tuple(value * _PIXEL / spec.scale for value in (*spec.mean, *spec.std))
                expected_pixels = (*expected.mean, *expected.std)
                if not all(
                    math.isclose(*pair, abs_tol=1e-3) for pair in zip(pixels, expected_pixels, strict=True)
                ):
                    mean, std = ([round(value, 4) for value in values] for values in expected[:2])
                    yield f"{place}: NormalizeImage with mean {mean} and std {std}"
        resize = next((spec for spec in specs if isinstance(spec, ResizeImage)), None)
        crop = next((spec for spec in specs if isinstance(spec, CropImage)), None)
        if place == "DataLoader.Train" or resize is None or crop is None:
            continue
        if resize.interpolation != expected.interpolation:
            yield f"{place}: ResizeImage with interpolation {expected.interpolation}"
        if resize.resize_short is not None:
            ratio = min(crop.size) / resize.resize_short
            if abs(ratio - expected.crop_ratio) > _RATIO_TOLERANCE:
                side = round(min(crop.size) / expected.crop_ratio)
                yield f"{place}: ResizeImage with resize_short {side} (crop ratio {expected.crop_ratio})"
