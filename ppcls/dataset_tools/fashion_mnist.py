"""Copies the four IDX files of Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, https://arxiv.org/abs/1708.07747).

Nothing is downloaded: the files are those of Debian's package ``dataset-fashion-mnist``, or of a folder.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from ppcls.data.index.class_names import LABEL_LIST, write_class_names
from ppcls.data.index.idx import read_idx
from ppcls.errors import UserError
from ppcls.files import new_folder, read_regular

NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_SIDE = 28
_IMAGES = {"train": 60_000, "t10k": 10_000}


def make_fashion_mnist(folder: Path, source: Path) -> bool:
    """Copies the four files of Fashion-MNIST into a new folder, and writes the class names.

    Args:
        folder: Folder to create.
        source: Folder with the files, as they are published or decompressed.

    Returns:
        False if ``folder`` already contains the data set.

    Raises:
        UserError: A file is missing or has another shape, or ``folder`` contains something else.
    """
    if (folder / LABEL_LIST).is_file():
        _check(folder)
        return False
    if not source.is_dir():
        raise UserError(
            f"{source}: no such folder with the files of Fashion-MNIST; install Debian's package with "
            "`apt-get install dataset-fashion-mnist`, or download the four files train-images-idx3-ubyte.gz, "
            "train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz from "
            "https://github.com/zalandoresearch/fashion-mnist, and name their folder with --source"
        )
    _check(source)
    try:
        with new_folder(folder) as temporary:
            for name in _file_names():
                file = _find(source, name)
                content = read_regular(file)
                # The configs name the compressed files.
                (temporary / name).write_bytes(
                    content if file.name == name else gzip.compress(content, mtime=0)
                )
            write_class_names(temporary / LABEL_LIST, NAMES)
    except FileExistsError:
        raise UserError(
            f"{folder} already exists; nothing was written; choose another folder with --out"
        ) from None
    return True


def _file_names() -> list[str]:
    return [f"{part}-{name}-ubyte.gz" for part in _IMAGES for name in ("images-idx3", "labels-idx1")]


def _find(folder: Path, name: str) -> Path:
    """Returns the path of a file, or of the decompressed file if only that exists."""
    plain = folder / name.removesuffix(".gz")
    return plain if plain.exists() and not (folder / name).exists() else folder / name


def _check(folder: Path) -> None:
    """Raises `UserError` unless the folder has the four files with the shapes of Fashion-MNIST."""
    for part, count in _IMAGES.items():
        shapes = {
            "images-idx3": (count, _SIDE, _SIDE),
            "labels-idx1": (count,),
        }
        for name, shape in shapes.items():
            path = _find(folder, f"{part}-{name}-ubyte.gz")
            actual = read_idx(path).shape
            if actual != shape:
                raise UserError(f"{path}: expected {list(shape)} bytes, found {list(actual)}")
