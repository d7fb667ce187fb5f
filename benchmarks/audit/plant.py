"""Writes data sets with planted faults: wrong labels, duplicates across the splits, and foreign images."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from ppcls.data.index.idx import read_idx
from ppcls.dataset_tools.digits import SIZE
from ppcls.dataset_tools.fashion_mnist import NAMES
from ppcls.dataset_tools.photos import find_sources
from ppcls.files import new_folder, write_text

FAULTS = "faults.json"
PICTURES = "pictures"
_VALIDATES = 5  # each fifth image of the digits is for validation


@dataclass(frozen=True)
class LabelledPixels:
    """Images with labels.

    Attributes:
        pixels: [N, H, W] uint8.
        labels: [N] int64.
        validates: Whether an image is for validation, [N] bool.
        names: Class names in order of label.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    validates: NDArray[np.bool_]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Amounts:
    """How many faults are planted.

    Attributes:
        wrong: Share of the images that get a wrong label.
        exact: Number of training images that are copied to the validation images, byte for byte.
        near: Number of training images that are copied with a change that people do not notice.
        foreign: Number of images of something else.
    """

    wrong: float = 0.05
    exact: int = 10
    near: int = 10
    foreign: int = 10


def read_digits() -> LabelledPixels:
    """Returns the 1,797 digits of scikit-learn, enlarged to 32 x 32 pixels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = []
    for strokes in digits.images:
        grey = Image.fromarray(np.rint(strokes * (255 / 16)).astype(np.uint8))
        rows.append(np.asarray(grey.resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
    validates = np.arange(len(rows)) % _VALIDATES == 1
    return LabelledPixels(
        np.stack(rows), digits.target.astype(np.int64), validates, tuple(map(str, range(10)))
    )


def read_fashion_mnist(folder: Path) -> LabelledPixels:
    """Returns the 70,000 images of Fashion-MNIST.

    Args:
        folder: Result of ``ppcls dataset fashion-mnist``.
    """
    parts = [
        (
            read_idx(folder / f"{part}-images-idx3-ubyte.gz"),
            read_idx(folder / f"{part}-labels-idx1-ubyte.gz"),
        )
        for part in ("train", "t10k")
    ]
    validates = np.repeat([False, True], [len(labels) for _, labels in parts])
    pixels = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return LabelledPixels(pixels, labels, validates, tuple(name.replace("/", "-") for name in NAMES))


def plant(data: LabelledPixels, folder: Path, amounts: Amounts, seed: int) -> dict[str, Any]:
    """Writes PNG files in ``pictures/train`` and ``pictures/val``, one subfolder per class, and the faults.

    An image has at most one fault.

    Args:
        data: The images.
        folder: Folder to create.
        amounts: Numbers of faults.
        seed: Seed of all choices.

    Returns:
        The planted faults: ``wrong`` maps files to their right class, ``exact`` and ``near`` list pairs of
        files, and ``foreign`` lists files. Paths are relative to ``pictures``.
    """
    rng = np.random.default_rng(seed)
    labels = data.labels.copy()
    count = len(labels)
    wrong = rng.choice(count, round(amounts.wrong * count), replace=False)
    labels[wrong] = (labels[wrong] + rng.integers(1, len(data.names), len(wrong))) % len(data.names)
    free = np.setdiff1d(np.flatnonzero(~data.validates), wrong)
    chosen = rng.choice(free, amounts.exact + amounts.near, replace=False)
    changes = list(_CHANGES.values())
    with new_folder(folder) as temporary:
        pictures = temporary / PICTURES
        for split in ("train", "val"):
            for name in data.names:
                (pictures / split / name).mkdir(parents=True)

        def path(position: int, *, copy: bool = False) -> str:
            split = "val" if data.validates[position] or copy else "train"
            name = data.names[int(labels[position])]
            return f"{split}/{name}/{'copy' if copy else 'image'}-{position:06}.png"

        for position, image in enumerate(data.pixels):
            Image.fromarray(image).save(pictures / path(position), compress_level=1)
        pairs = []
        for number, position in enumerate(chosen.tolist()):
            original = pictures / path(position)
            copy = path(position, copy=True)
            if number < amounts.exact:
                (pictures / copy).write_bytes(original.read_bytes())
            else:
                change = changes[number % len(changes)]
                change(Image.fromarray(data.pixels[position])).save(pictures / copy)
            pairs.append([path(position), copy])
        foreign = list(_write_foreign(pictures, data, amounts.foreign, rng))
        faults = {
            "wrong": {path(at): data.names[int(data.labels[at])] for at in wrong.tolist()},
            "exact": pairs[: amounts.exact],
            "near": pairs[amounts.exact :],
            "foreign": foreign,
        }
        write_text(temporary / FAULTS, json.dumps(faults, indent=1) + "\n")
    return faults


def _compress(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=80)
    return Image.open(file).convert("L")


def _shrink(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.resize((3 * width // 4, 3 * height // 4), Image.Resampling.BILINEAR)


# The changes of near duplicates: what happens to pictures that are sent, stored and downloaded again.
_CHANGES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG of quality 80": _compress,
    "three quarters of the size": _shrink,
    "15 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "15 % less contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.85),
}


def _write_foreign(pictures: Path, data: LabelledPixels, count: int, rng: np.random.Generator) -> list[str]:
    """Writes crops of photographs as training images, and returns their paths."""
    height, width = data.pixels.shape[1:]
    sources = find_sources()
    paths = []
    for number in range(count):
        photo = Image.open(sources[number % len(sources)]).convert("L")
        side = min(photo.size) // 2
        left, top = (int(rng.integers(0, length - side)) for length in photo.size)
        crop = photo.crop((left, top, left + side, top + side)).resize((width, height))
        name = data.names[int(rng.integers(len(data.names)))]
        paths.append(f"train/{name}/foreign-{number:02}.png")
        crop.save(pictures / paths[-1], icc_profile=None)
    return paths
