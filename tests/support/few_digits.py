"""Writes a small part of the digits of the quick start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ppcls.dataset_tools.digits import make_digits


def write_few_digits(folder: Path, train: int, evaluation: int) -> None:
    """Writes the first digits of both lists.

    Args:
        folder: New folder of the dataset.
        train: Number of images for training.
        evaluation: Number of images for evaluation.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    count = max(train * 4 // 3, evaluation * 6) + 40  # a fifth of each class is for evaluation
    few = SimpleNamespace(target=digits.target[:count], images=digits.images[:count])
    with pytest.MonkeyPatch.context() as patch:  # to write all of them takes a second
        patch.setattr(datasets, "load_digits", lambda: few)
        make_digits(folder)
    keep = set()
    for name, count in (("train_list.txt", train), ("val_list.txt", evaluation)):
        lines = (folder / name).read_text().splitlines(keepends=True)[:count]
        assert len(lines) == count
        (folder / name).write_text("".join(lines))
        keep |= {folder / line.split()[0] for line in lines}
    for image in (folder / "images").rglob("*.*"):
        if image not in keep:
            image.unlink()
