"""Handwritten digits as JPEG files: a real data set that needs no download.

Source: the 1,797 digits of 8×8 pixels that scikit-learn ships (E. Alpaydin, C. Kaynak, "Optical
Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ppcls.dataset_tools.make_dataset import is_made, make_dataset, write_lists
from ppcls.errors import UserError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZE = 32  # pixels; JPEG works in blocks of 8 pixels, so the originals' 8×8 would not survive it
_RECIPE = {"data set": "digits", "version": 1}


def make_digits(folder: Path) -> bool:
    """Makes the data set in ``folder``, the same bytes each time; returns False where it is there already.

    The images are ``images/<label>/<index>.jpg``, grey in RGB, 32×32; see `write_lists` for the lists.

    Raises:
        UserError: There is something else at ``folder``, or scikit-learn is not installed.
    """
    if is_made(folder, _RECIPE):
        return False
    try:
        from sklearn.datasets import load_digits  # here, for it imports SciPy
    except ImportError as error:
        raise UserError(
            f"the digits come with scikit-learn, which can't be imported: {error}; pip install scikit-learn"
        ) from error
    digits = load_digits()
    labels = [int(label) for label in digits.target]
    paths = [f"images/{label}/{index:04}.jpg" for index, label in enumerate(labels)]
    with make_dataset(folder, _RECIPE) as temporary:
        for label in range(len(NAMES)):
            (temporary / "images" / str(label)).mkdir(parents=True)
        for path, strokes in zip(paths, digits.images, strict=True):
            grey = np.rint(strokes * (255 / 16)).astype(np.uint8)
            image = Image.fromarray(grey).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
            image.convert("RGB").save(temporary / path, quality=95)
        write_lists(temporary, paths, labels, NAMES)
    return True
