"""Handwritten digits as JPEG files: a real dataset without a download.

Source: the 1,797 digits of 8×8 pixels in scikit-learn (E. Alpaydin, C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ppcls.dataset_tools.jobs import find_job
from ppcls.dataset_tools.make_dataset import JOB_FILE, make_dataset
from ppcls.errors import UserError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZE = 32  # pixels; JPEG compresses blocks of 8×8 pixels, which would spoil the original size
_RECIPE = {"data set": "digits", "version": 1}


def make_digits(folder: Path) -> bool:
    """Creates the dataset in ``folder`` with the same bytes each time; returns False if it exists already.

    The images are ``images/<label>/<index>.jpg``, grey in RGB, 32×32; see `make_dataset` for the lists.

    Raises:
        UserError: The folder contains something else, or scikit-learn is not installed.
    """
    if find_job(folder / JOB_FILE, _RECIPE) is not None:
        return False  # without the slow import
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            f"the digits are part of scikit-learn, which can't be imported: {error}; pip install scikit-learn"
        ) from error
    digits = load_digits()
    labels = [int(label) for label in digits.target]
    paths = [f"images/{label}/{index:04}.jpg" for index, label in enumerate(labels)]

    def write_images(root: Path) -> None:
        for path, strokes in zip(paths, digits.images, strict=True):
            grey = np.rint(strokes * (255 / 16)).astype(np.uint8)
            image = Image.fromarray(grey).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
            image.convert("RGB").save(root / path, quality=95)

    return make_dataset(folder, _RECIPE, paths, labels, NAMES, write_images)
