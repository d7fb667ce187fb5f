"""Creates a dataset of handwritten digits as JPEG files, without a download.

The source is scikit-learn's dataset of 1,797 digits with 8×8 pixels (E. Alpaydin, C. Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ppcls.dataset_tools.jobs import find_job
from ppcls.dataset_tools.make_dataset import JOB_FILE, make_dataset
from ppcls.errors import UserError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZE = 32  # pixels; at the original size, JPEG's blocks of 8×8 pixels would cause visible errors
_RECIPE = {"data set": "digits", "version": 1}


def make_digits(folder: Path) -> bool:
    """Creates the dataset. Its bytes are always the same.

    The images are ``images/<label>/<index>.jpg``, 32×32 pixels, with three equal channels. See `make_dataset`
    for the lists.

    Returns:
        False if ``folder`` already contains this dataset.

    Raises:
        UserError: The folder contains something else, or scikit-learn is not installed.
    """
    if find_job(folder / JOB_FILE, _RECIPE) is not None:
        return False  # avoids the slow import
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            f"the digits are part of scikit-learn, which can't be imported: {error}; install it with pip "
            "install scikit-learn"
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
