"""Reads CIFAR-10 from its pickled files for Python (https://www.cs.toronto.edu/~kriz/cifar.html)."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.config.base.fields import Count, Index
from ppcls.data.index.base import DECODER, Dataset
from ppcls.data.index.class_names import check_labels
from ppcls.data.index.pixels import PixelIndex
from ppcls.data.records.tar import check_sizes, list_members
from ppcls.errors import UserError, counted
from ppcls.files import read_regular
from ppcls.weights.pickled import unpickle_bytes

_FOLDER = "cifar-10-batches-py"
_FILES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_SIDE = 32
_CHANNELS = 3
_MAX_BYTES = 1 << 26  # maximum size of a file; the published files have 31 MB


class Cifar10(Dataset):
    """CIFAR-10 (Krizhevsky 2009) in its Python version. The reader does not execute code in the files."""

    ignored: ClassVar[Mapping[str, str]] = {
        "download": "nothing is downloaded; set data_file instead",
        **DECODER,
    }
    data_file: str = "~/.cache/paddle/dataset/cifar/cifar-10-python.tar.gz"
    """The file `cifar-10-python.tar.gz`, or the folder `cifar-10-batches-py` from it. The default is the path
    to which Paddle downloads the file."""
    mode: Literal["train", "test"] = "train"
    """Part of the images: `train` has 50,000 images, `test` has 10,000."""
    sample_per_label: Count | None = None
    """Number of images per class, selected at random; default: all images."""
    expand_labels: Count = 1
    """Number of times that each selected image occurs in an epoch. Needs `sample_per_label`."""
    sample_seed: Index = 0
    """Seed of the random selection of `sample_per_label` images per class."""

    @property
    def place(self) -> str:
        """File or folder of the data set."""
        return self.data_file

    def read(self, class_num: int | None) -> PixelIndex:
        """Reads the images and labels.

        Raises:
            UserError: A file is missing or damaged, or is not a file of CIFAR-10; or a class has fewer images
                than ``sample_per_label``.
        """
        source = Path(self.data_file).expanduser()
        batches = [_read_batch(data, path) for path, data in _read_files(source, _FILES[self.mode])]
        pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        if self.sample_per_label is not None:
            sampled = _sample(labels, self.sample_per_label, self.sample_seed, source)
            chosen = np.tile(sampled, self.expand_labels)
            pixels = pixels[chosen]
            labels = labels[chosen]
        planes = pixels.reshape(-1, _CHANNELS, _SIDE, _SIDE)
        # A copy in the order of an image, because each image is read once per epoch.
        index = PixelIndex(source, np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
        check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
        return index


def _read_files(source: Path, names: Sequence[str]) -> list[tuple[Path, bytes]]:
    try:
        if source.is_dir():
            return [(source / name, read_regular(source / name)) for name in names]
        with check_sizes(), tarfile.open(source, "r:*") as tar:
            members = {member.name: member for member in list_members(tar)}
            return [(source / name, _read_member(tar, members, f"{_FOLDER}/{name}")) for name in names]
    except FileNotFoundError as error:
        raise UserError(
            f"{error.filename}: no such file; download cifar-10-python.tar.gz, and set data_file of the "
            "dataset to its path"
        ) from None
    except (
        ArithmeticError,
        EOFError,
        LookupError,
        OSError,
        ValueError,
        lzma.LZMAError,
        tarfile.TarError,
        zlib.error,
    ) as error:  # tarfile raises ValueError and others for damaged pax headers and maps of sparse files
        reason = str(error).partition("\n")[0].rstrip(":")  # more lines name each compression
        raise UserError(
            f"{source}: can't read cifar-10-python.tar.gz: {reason}; set data_file of the dataset to this "
            "archive, or to its unpacked folder"
        ) from None


def _read_member(tar: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], name: str) -> bytes:
    if name not in members:
        raise tarfile.TarError(f"{name} not found")
    member = members[name]
    if not member.isfile() or member.size > _MAX_BYTES:
        raise tarfile.TarError(f"{name}: expected a file of at most {_MAX_BYTES} bytes, found {member.size}")
    file = tar.extractfile(member)
    assert file is not None  # because the member is a regular file
    return file.read()


def _read_batch(data: bytes, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    content: Any = unpickle_bytes(data, path)
    content = content if isinstance(content, dict) else {}
    pixels = content.get("data")
    labels = content.get("labels")
    shape = (len(labels), _CHANNELS * _SIDE**2) if isinstance(labels, list) else None
    is_valid = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape == shape
    if not is_valid or not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
        raise UserError(
            f"{path}: expected the contents of a CIFAR-10 file: 'data' [N, 3072] uint8, and 'labels', a list "
            "of N whole numbers"
        )
    return pixels, np.array(labels, np.int64)


def _sample(labels: NDArray[np.int64], count: int, seed: int, source: Path) -> NDArray[np.int64]:
    """Returns the positions of ``count`` random images per class, sorted by class."""
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        if len(positions) < count:
            raise UserError(
                f"{source}: class {label} has {counted(len(positions), 'image')}, but sample_per_label is "
                f"{count}; decrease sample_per_label"
            )
        chosen.append(rng.choice(positions, count, replace=False))
    return np.concatenate(chosen)
