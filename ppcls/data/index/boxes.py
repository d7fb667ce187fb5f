"""Provides images that are cropped to a bounding box, for the dataset CompCars (Yang et al. 2015)."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
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
    """Implements `ppcls.data.index.protocol.Index` for image files that are cropped to boxes.

    Attributes:
        files: Index of the image files.
        boxes: Box of each image, [N, 4] int64: left, top, right and bottom in pixels. Right and bottom are
            exclusive.
    """

    files: FileIndex
    boxes: NDArray[np.int64]

    @property
    def labels(self) -> NDArray[Any]:
        """Labels, [N] int64."""
        return self.files.labels

    @property
    def source(self) -> Path:
        """List file of the images, for messages."""
        return self.files.source

    def __len__(self) -> int:
        return len(self.files)

    def name(self, position: int) -> str:
        """Returns the full path of a sample, for messages."""
        return self.files.name(position)

    def where(self, position: int) -> str:
        """Returns the location of a sample in the list."""
        return self.files.where(position)

    def find(self, places: Collection[tuple[str, str]]) -> list[int]:
        """Returns the positions of samples. See `ppcls.data.index.protocol.find_samples`."""
        return self.files.find(places)

    def read(self, position: int) -> bytes:
        """Returns the cropped image, encoded as BMP.

        Raises:
            DecodeError: The image can't be read or decoded, or the box is outside of the image.
        """
        # Imported here because decode imports OpenCV, which checking a config does not need.
        from ppcls.data.images.decode import decode
        from ppcls.data.transforms.specs.basic import DecodeImage

        left, top, right, bottom = self.boxes[position].tolist()
        pixels = decode(DecodeImage(), self.files.read(position))[top:bottom, left:right]
        if not pixels.size:
            raise DecodeError(
                f"the box [left, top, right, bottom] {self.boxes[position].tolist()} is outside of the image"
            )
        encoded = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(encoded, "BMP")
        return encoded.getvalue()


def crop_to_boxes(files: FileIndex, label_root: Path) -> CroppedIndex:
    """Reads the box of each image, and returns an index of the cropped images.

    Args:
        files: The images. The box of ``a/b.jpg`` is read from ``a/b.txt``, whose last line must be
            ``left top right bottom`` in pixels.
        label_root: Folder of the ``.txt`` files.

    Raises:
        UserError: A ``.txt`` file is missing, or its last line is not a box.
    """
    boxes = []
    problems = []
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
        raise UserError(f"{label_root}: no such folder; set label_root to the folder of the box files")
    for path in files.paths:
        yield (label_root / bytes(path).decode("utf-8", "surrogateescape")).with_suffix(".txt")
