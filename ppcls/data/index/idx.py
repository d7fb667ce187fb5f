"""Reads images and labels from IDX files, the format of MNIST (http://yann.lecun.com/exdb/mnist/).

An IDX file starts with two zero bytes, the type of its numbers and the number of its dimensions. The size of
each dimension follows as a big-endian integer of four bytes, and then all numbers. The last dimension varies
fastest.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.base import DECODER, Dataset
from ppcls.data.index.class_names import check_labels, join_first
from ppcls.data.index.pixels import PixelIndex
from ppcls.errors import UserError, counted
from ppcls.files import expand_home, read_regular

_UNSIGNED_BYTES = 8  # the type of the numbers in all files of MNIST and its successors
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_BYTES = 1 << 31  # EMNIST, the largest of these data sets, has 0.6 GB
_MAX_HEADER = 4 + 4 * 255  # the number of dimensions is one byte


class IdxDataset(Dataset):
    """Images and labels in IDX files: MNIST, Fashion-MNIST, KMNIST, EMNIST and others in this format.

    The files may be compressed by gzip, as they are published. All images are kept in memory.
    """

    ignored: ClassVar[Mapping[str, str]] = DECODER

    image_file: str
    """File with the images, such as `train-images-idx3-ubyte.gz`: unsigned bytes [N, height, width],
    [N, height, width, 1] or [N, height, width, 3]."""
    label_file: str
    """File with the label of each image, [N] unsigned bytes, such as `train-labels-idx1-ubyte.gz`."""

    @property
    def place(self) -> str:
        """File of the images."""
        return self.image_file

    @property
    def label_place(self) -> str:
        """Path of the file of the labels."""
        return self.label_file

    def read(self, class_num: int | None) -> PixelIndex:
        """Reads the images and labels.

        Raises:
            UserError: A file is missing or damaged, or the files do not belong together.
        """
        image_file = Path(expand_home(self.image_file))
        label_file = Path(expand_home(self.label_file))
        for file in (image_file, label_file):
            _check_exists(file)
        pixels = read_idx(image_file)
        labels = read_idx(label_file)
        if pixels.shape[3:] == (1,):
            pixels = pixels[..., 0]
        if pixels.ndim not in (3, 4) or pixels.shape[3:] not in ((), (3,)) or 0 in pixels.shape:
            remedy = "set image_file of the dataset to the file of the images"
            if pixels.shape[1:2] == (3,) and pixels.ndim == 4:
                remedy = "the channels come first: in NumPy, write images.transpose(0, 2, 3, 1) instead"
            raise UserError(
                f"{image_file}: expected images [N, height, width] or [N, height, width, 3], found "
                f"{list(pixels.shape)}; {remedy}"
            )
        if labels.shape != pixels.shape[:1]:
            raise UserError(
                f"{label_file}: expected the labels of {counted(len(pixels), 'image')} in {image_file}, "
                f"found {list(labels.shape)}; set label_file of the dataset to the labels of these images"
            )
        index = PixelIndex(image_file, pixels, labels.astype(np.int64))
        check_labels(index.labels, lambda at: f"{label_file}, {index.where(at)}", class_num)
        return index


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Returns the numbers in an IDX file of unsigned bytes, which may be compressed by gzip.

    Raises:
        UserError: The file is missing, is no such file, or has too few or too many bytes.
    """
    try:
        content = read_regular(path)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; `ppcls dataset fashion-mnist --help` says where Fashion-MNIST comes from"
        ) from None
    if content.startswith(_GZIP_MAGIC):
        # The header first, because a hostile file of a few MB can decompress to many GB. One byte more than
        # expected reaches the end, where gzip checks its sum, and shows whether there is too much data.
        header = _decompress(content, path, _MAX_HEADER)
        content = _decompress(content, path, _count_bytes(_read_shape(header, path), path) + 1)
    shape = _read_shape(content, path)
    expected = _count_bytes(shape, path)
    if len(content) != expected:
        raise UserError(
            f"{path}: expected {expected} bytes for {list(shape)} numbers, found "
            f"{'more' if len(content) > expected else len(content)}; download or copy the file again"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _check_exists(path: Path) -> None:
    """Raises `UserError` if a file is missing and its folder has other files, which the message lists."""
    if path.exists() or not path.parent.is_dir():
        return
    if files := sorted(file.name for file in path.parent.iterdir() if file.is_file()):
        raise UserError(
            f"{path}: no such file; its folder has {join_first(files)}; set image_file and label_file of "
            "DataLoader.Train.dataset and DataLoader.Eval.dataset to IDX files"
        )


def _decompress(content: bytes, path: Path, limit: int) -> bytes:
    """Returns at most the first ``limit`` bytes of the decompressed content."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            return file.read(limit)
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file: {error}; download or copy the file again") from None


def _count_bytes(shape: tuple[int, ...], path: Path) -> int:
    """Returns the size of a file with this shape."""
    size = 4 + 4 * len(shape) + math.prod(shape)
    if size > _MAX_BYTES:
        raise UserError(f"{path}: expected at most {_MAX_BYTES} bytes, but {list(shape)} numbers need {size}")
    return size


def _read_shape(content: bytes, path: Path) -> tuple[int, ...]:
    """Returns the size of each dimension of an IDX file."""
    zeros, kind, rank = struct.unpack_from(">HBB", content) if len(content) >= 4 else (1, 0, 0)
    if zeros != 0 or kind != _UNSIGNED_BYTES or not rank or len(content) < 4 + 4 * rank:
        raise UserError(
            f"{path}: expected an IDX file of unsigned bytes, which starts with 00 00 08, found "
            f"{content[:4].hex(' ') or 'an empty file'}; set image_file and label_file to files such as "
            "train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz"
        )
    return struct.unpack_from(f">{rank}I", content, 4)
