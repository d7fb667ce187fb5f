"""Images that are cropped to a box, as in CompCars (Yang et al. 2015)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import read_regular


@dataclass(frozen=True)
class CroppedIndex:
    """A `ppcls.data.index.read.Index` of image files, of which only a box is used.

    Attributes:
        files: The image files.
        boxes: [N, 4] int64: left, top, right and bottom in pixels; right and bottom are outside.
    """

    files: FileIndex
    boxes: NDArray[np.int64]

    @property
    def labels(self) -> NDArray[Any]:
        """[N] int64."""
        return self.files.labels

    @property
    def source(self) -> Path:
        """List file."""
        return self.files.source

    def __len__(self) -> int:
        return len(self.files)

    def name(self, position: int) -> str:
        """Returns the full path of a sample, for messages."""
        return self.files.name(position)

    def where(self, position: int) -> str:
        """Returns the location of a sample in the list."""
        return self.files.where(position)

    def read(self, position: int) -> bytes:
        """Returns the part of the image in its box as BMP.

        Raises:
            DecodeError: The image can't be read or decoded, or the box is outside of it.
        """
        # Imports OpenCV, which a config that is only checked does not need.
        from ppcls.data.images.decode import decode
        from ppcls.data.transforms.specs.basic import DecodeImage

        left, top, right, bottom = self.boxes[position].tolist()
        pixels = decode(DecodeImage(), self.files.read(position))[top:bottom, left:right]
        if not pixels.size:
            raise DecodeError(f"the box {self.boxes[position].tolist()} is outside of the image")
        encoded = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(encoded, "BMP")
        return encoded.getvalue()


def crop_to_boxes(files: FileIndex, label_root: Path) -> CroppedIndex:
    """Reads the box of each image from the last line, ``left top right bottom``, of a file of its name.

    Args:
        files: The images. The box of ``a/b.jpg`` is in ``a/b.txt``.
        label_root: Folder of these files.

    Raises:
        UserError: A file is missing, or its last line is not a box.
    """
    boxes, problems = [], []
    for position, path in enumerate(_box_files(files, label_root)):
        try:
            lines = read_regular(path).decode("utf-8", "replace").split("\n")
        except OSError as error:
            problems.append(f"{files.where(position)}: {path}: can't read the box: {error.strerror}")
            continue
        numbers = next((line.split() for line in reversed(lines) if line.strip()), [])
        box = [int(number) for number in numbers if number.isdecimal() and len(number) < 10]
        if len(numbers) != 4 or len(box) != 4 or box[0] >= box[2] or box[1] >= box[3]:
            problems.append(f"{path}: expected 'left top right bottom' in the last line, got {numbers}"[:200])
            continue
        boxes.append(box)
    raise_line_errors(problems)
    return CroppedIndex(files, np.array(boxes, np.int64))


def _box_files(files: FileIndex, label_root: Path) -> Iterator[Path]:
    if not label_root.is_dir():
        raise UserError(f"{label_root}: no such folder; expected the boxes of label_root there")
    for path in files.paths:
        yield (label_root / bytes(path).decode("utf-8", "surrogateescape")).with_suffix(".txt")
