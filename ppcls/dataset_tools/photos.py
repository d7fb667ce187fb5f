"""Creates a dataset of photos for benchmarks, without a download.

The photos are random crops of scikit-image's colour photographs. Size and decoding time are similar to
ImageNet: 500×375 pixels, 110 KB on average. Each class is one photograph with one change of colours, so a
model can learn the classes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppcls.dataset_tools.make_dataset import make_dataset
from ppcls.errors import UserError

SOURCES = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)
# pixels
LONG = 500
SHORT = 375
QUALITY = 92
PORTRAITS = 0.25  # share of images in portrait format
_GRAIN = (12.0, 27.0)  # range of the standard deviation of noise in grey levels; determines the file size

Pixels = NDArray[np.float32]  # [H, W, 3] RGB, 0..255

TREATMENTS: dict[str, Callable[[Pixels], Pixels]] = {
    "plain": lambda pixels: pixels,
    "negative": lambda pixels: 255 - pixels,
    "grey": lambda pixels: np.repeat(pixels.mean(axis=2, keepdims=True), 3, axis=2),
    "swapped": lambda pixels: pixels[:, :, ::-1],
}


@dataclass(frozen=True)
class _PhotoJob:
    """Settings of one image to create.

    Attributes:
        index: Number of the image.
        seed: Seed of the dataset.
        source: Photograph to crop.
        treatment: Change of colours, a key of `TREATMENTS`.
        target: File to write.
    """

    index: int
    seed: int
    source: Path
    treatment: str
    target: Path


def find_sources() -> list[Path]:
    """Returns the files of `SOURCES` that exist.

    Raises:
        UserError: None of them exists, or scikit-image is not installed.
    """
    try:
        import skimage
    except ImportError as error:
        raise UserError(
            f"the photographs are part of scikit-image, which can't be imported: {error}; "
            "install it with pip install scikit-image"
        ) from error
    folder = Path(skimage.__file__).parent / "data"
    paths = [folder / name for name in SOURCES if (folder / name).is_file()]
    if not paths:
        raise UserError(
            f"{folder}: expected photographs of scikit-image such as {SOURCES[0]}, found none; reinstall "
            "scikit-image"
        )
    return paths


def make_photos(folder: Path, images: int, classes: int = 8, seed: int = 0) -> bool:
    """Creates the dataset. Equal arguments result in equal bytes, on any number of processes.

    The images are ``images/<label>/<index>.jpg``. See `make_dataset` for the lists.

    Args:
        folder: Folder to create.
        images: Number of images, at least two per class.
        classes: Number of classes. The first classes are the unchanged photographs.
        seed: Seed of the random crops, flips, colour gains and noise.

    Returns:
        False if the folder already contains this dataset.

    Raises:
        UserError: The folder contains something else, there is no photograph, or a number is out of range.
    """
    sources = find_sources()
    kinds = [(source, treatment) for treatment in TREATMENTS for source in sources]
    if not 2 <= classes <= len(kinds):
        raise UserError(f"--classes: expected 2 to {len(kinds)}, got {classes}")
    if images < 2 * classes:
        raise UserError(f"images: expected at least {2 * classes}, two per class, got {images}")
    if seed < 0:
        raise UserError(f"--seed: expected 0 or more, got {seed}")
    labels = [index % classes for index in range(images)]
    paths = [f"images/{label:02}/{index:06}.jpg" for index, label in enumerate(labels)]

    def write_images(root: Path) -> None:
        _write_all(
            [
                _PhotoJob(index, seed, *kinds[label], root / path)
                for index, (label, path) in enumerate(zip(labels, paths, strict=True))
            ]
        )

    recipe = {"data set": "photos", "version": 1, "images": images, "classes": classes, "seed": seed}
    names = [f"{source.stem} {treatment}" for source, treatment in kinds[:classes]]
    return make_dataset(folder, recipe, paths, labels, names, write_images)


def _write_all(photos: list[_PhotoJob]) -> None:
    from rich.console import Console
    from rich.progress import track

    workers = min(os.cpu_count() or 1, 1 + len(photos) // 64)
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,  # workers ignore Ctrl-C; this process handles it and cancels them
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    with pool:
        written = pool.map(_write, photos, chunksize=16)
        # Standard output is for results, such as the config that --print-config prints.
        console = Console(stderr=True)
        for _ in track(written, description="photographs", total=len(photos), console=console):
            pass


@lru_cache(maxsize=len(SOURCES))
def _read(source: Path) -> Image.Image:
    return Image.open(source).convert("RGB")


def _write(photo: _PhotoJob) -> None:
    """Creates and writes one image, which depends only on the fields of ``photo``."""
    rng = np.random.default_rng([photo.seed, photo.index])
    source = _read(photo.source)
    width, height = (SHORT, LONG) if rng.random() < PORTRAITS else (LONG, SHORT)
    # Crops a window with the aspect ratio of the image. Its area is a third to all of the largest possible
    # area.
    scale = min(source.width / width, source.height / height) * rng.uniform(1 / 3, 1) ** 0.5
    left = rng.uniform(0, source.width - scale * width)
    top = rng.uniform(0, source.height - scale * height)
    window = (left, top, left + scale * width, top + scale * height)
    cut = source.resize((width, height), Image.Resampling.BICUBIC, box=window)
    pixels = TREATMENTS[photo.treatment](np.asarray(cut, np.float32))
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    grain = rng.standard_normal((height, width, 1), np.float32) * rng.uniform(*_GRAIN)
    pixels = pixels * rng.uniform(0.8, 1.2, 3) + grain
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(photo.target, quality=QUALITY)
