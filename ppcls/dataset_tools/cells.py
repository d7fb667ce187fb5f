"""Creates a dataset of images with five channels, without a download.

Each image shows a synthetic cell in fluorescence microscopy. Its class is the location of a marker protein,
which only the fifth channel shows. The other channels show nucleus, cytoplasm, membrane and organelles.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

from ppcls.dataset_tools.make_dataset import make_dataset

NAMES = ("nucleus", "cytoplasm", "membrane", "spots")
SIZE = 50  # pixels
_PHOTONS = 400.0  # mean number of photons of the brightest pixel; numbers of photons are Poisson-distributed
_GAINS = (90.0, 60.0, 75.0, 110.0, 100.0)  # grey levels per photon in each channel
_OFFSET = 500.0  # grey level without light

Image = NDArray[np.float64]


def make_cells(folder: Path, count: int, seed: int) -> bool:
    """Creates the dataset. Equal arguments result in equal pixels.

    The images are ``images/<label>/<index>.tif``, [50, 50, 5] uint16. See `make_dataset` for the lists.

    Args:
        folder: Folder to create.
        count: Number of images, which are distributed evenly over the classes.
        seed: Seed of the random cells.

    Returns:
        False if the folder already contains this dataset.

    Raises:
        UserError: The folder contains something else.
    """
    labels = [index % len(NAMES) for index in range(count)]
    paths = [f"images/{label}/{index:05}.tif" for index, label in enumerate(labels)]

    def write_images(root: Path) -> None:
        for index, (path, label) in enumerate(zip(paths, labels, strict=True)):
            pixels = draw_cell(label, np.random.default_rng([seed, index]))
            tifffile.imwrite(
                root / path, pixels, photometric="minisblack", planarconfig="contig", compression="zlib"
            )

    recipe = {"data set": "cells", "version": 1, "images": count, "seed": seed}
    return make_dataset(folder, recipe, paths, labels, NAMES, write_images)


def draw_cell(label: int, rng: np.random.Generator) -> NDArray[np.uint16]:
    """Draws one cell.

    Args:
        label: Location of the marker, an index of `NAMES`.
        rng: Generator of random numbers.

    Returns:
        The image, [50, 50, 5] uint16. The channels are nucleus, cytoplasm, membrane, organelles and marker.
    """
    centre = rng.uniform(20, 30, 2)
    axes = rng.uniform(13, 19, 2)
    angle = rng.uniform(0, np.pi)
    body = _distance(centre, axes, angle)
    core = _distance(centre + rng.uniform(-4, 4, 2), axes * rng.uniform(0.35, 0.5), angle)
    nucleus = _soft(1 - core)
    cell = _soft(1 - body)
    cytoplasm = cell * (1 - nucleus)
    membrane = np.exp(-(((body - 1) * 8) ** 2))
    organelles, spots = (_spots(cytoplasm, rng) for _ in range(2))
    places = (nucleus, cytoplasm, membrane, spots)
    marker = places[label] * rng.uniform(0.4, 1)
    stained = np.stack([nucleus, cytoplasm, membrane, organelles, marker], axis=-1)
    light = stained * rng.uniform(0.5, 1, 5) + 0.02
    grey: Image = rng.poisson(light * _PHOTONS) * np.array(_GAINS) + _OFFSET
    return np.clip(grey, 0, 65535).astype(np.uint16)


def _distance(centre: Image, axes: Image, angle: float) -> Image:
    """Returns the distance of each pixel from the centre of an ellipse, [50, 50]; 1 on the ellipse."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    down = rows - centre[0]
    right = columns - centre[1]
    along = right * np.cos(angle) + down * np.sin(angle)
    across = down * np.cos(angle) - right * np.sin(angle)
    distance: Image = np.hypot(along / axes[0], across / axes[1])
    return distance


def _soft(inside: Image) -> Image:
    """Returns a soft mask of a shape: 1 for large positive values, 0.5 for 0, 0 for large negative values."""
    soft: Image = 1 / (1 + np.exp(-12 * inside))
    return soft


def _spots(where: Image, rng: np.random.Generator) -> Image:
    """Returns twelve small discs, [50, 50], 0..1, at random pixels with the probabilities ``where``."""
    places = rng.choice(where.size, 12, p=where.ravel() / where.sum())
    rows, columns = np.mgrid[:SIZE, :SIZE]
    discs = (np.exp(-((rows - p // SIZE) ** 2 + (columns - p % SIZE) ** 2) / 3) for p in places)
    return np.minimum(sum(discs, start=np.zeros((SIZE, SIZE))), 1)
