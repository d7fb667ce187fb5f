"""Converts image files into record files, shard by shard, and verifies the shards.

A shard gets its final name only when it is complete and verified. So after an interruption, the conversion
resumes at the first missing shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import BadImageError, bad_image_error, to_bad_images
from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.data.records.shard import ImageRecord, OpenFiles, RecordFormat, default_index_path
from ppcls.dataset_tools.jobs import find_job, other_settings
from ppcls.errors import UserError, counted
from ppcls.files import atomic_path, new_folder, one_line, real_path, write_text

_JOB_FILE = "convert.json"
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Conversion:
    """A conversion of images into shards.

    Attributes:
        index: The images.
        container: Format of the shards.
        folder: Folder of the shards.
        ends: Position after the last image of each shard, [S].
    """

    index: FileIndex
    container: RecordFormat
    folder: Path
    ends: tuple[int, ...]

    @property
    def shards(self) -> list[tuple[Path, range]]:
        """Path of each shard, and positions of its images."""
        count = len(self.ends)
        begins = (0, *self.ends)
        return [
            (self.folder / f"shard-{number:05d}-of-{count:05d}{self.container.suffix}", range(begin, end))
            for number, (begin, end) in enumerate(zip(begins, self.ends, strict=False))
        ]


def split_evenly(images: int, shards: int) -> tuple[int, ...]:
    """Divides images into shards whose numbers of images differ by at most one.

    Returns:
        Position after the last image of each shard, [S].

    Raises:
        UserError: There are fewer images than shards.
    """
    if shards > images:
        raise UserError(
            f"--shards: expected at most one shard per image, got {counted(shards, 'shard')} for "
            f"{counted(images, 'image')}"
        )
    return tuple(images * (number + 1) // shards for number in range(shards))


def split_by_size(sizes: NDArray[np.int64], most: int) -> tuple[int, ...]:
    """Divides images into shards of limited size. An image larger than the limit gets its own shard.

    Args:
        sizes: [N], size of each image in bytes, N > 0.
        most: Maximum size in bytes of all images in a shard.

    Returns:
        Position after the last image of each shard, [S].
    """
    ends = []
    filled = 0
    for position, size in enumerate(sizes.tolist()):
        if filled and filled + size > most:
            ends.append(position)
            filled = 0
        filled += size
    return (*ends, len(sizes))


def file_sizes(index: FileIndex) -> NDArray[np.int64]:
    """Returns the size of each file in bytes, [N] int64.

    Raises:
        BadImageError: Files are missing.
    """
    sizes = np.zeros(len(index), np.int64)
    missing = {}
    for position in range(len(index)):
        try:
            sizes[position] = Path(index.name(position)).stat().st_size
        except OSError as error:
            missing[position] = (error.strerror or str(error)).lower()
    if missing:
        raise bad_image_error(to_bad_images(index, missing))
    return sizes


def plan_conversion(
    index: FileIndex,
    container: RecordFormat,
    folder: Path,
    split: dict[str, int],
    ends: Callable[[], tuple[int, ...]],
) -> Conversion:
    """Starts or resumes a conversion.

    Args:
        index: The images.
        container: Format of the shards.
        folder: Folder of the shards, which is created if it is missing.
        split: The user's settings for dividing images into shards. They must be equal when a conversion
            resumes.
        ends: Returns the position after the last image of each shard. Called only for a new conversion.

    Raises:
        UserError: The folder contains something else, or a conversion with other settings or images.
    """
    source = str(real_path(index.root))
    settings = {"format": container.name, "source": source, "images": len(index), **split}
    digest = hashlib.sha256(index.labels.tobytes())
    for path in index.paths:
        digest.update(bytes(path) + b"\0")
    job_file = folder / _JOB_FILE
    saved = find_job(job_file, settings)
    if saved is None:
        saved = {**settings, "digest": digest.hexdigest(), "ends": ends()}
        folder.mkdir(parents=True, exist_ok=True)
        write_text(job_file, json.dumps(saved) + "\n")
    elif saved.get("digest") != digest.hexdigest():
        raise other_settings(folder, "paths or labels of the images have changed")
    return Conversion(index, container, folder, tuple(saved["ends"]))


def convert(conversion: Conversion, advance: Advance) -> int:
    """Writes the missing shards, and verifies all shards.

    Args:
        conversion: Images and shards.
        advance: Called with the progress in images: 0.5 when an image is written, and 0.5 when it is
            verified.

    Returns:
        Number of shards that already existed.

    Raises:
        UserError: An image can't be read or stored, or a shard is damaged. Existing shards are not changed.
    """
    container = conversion.container
    existing = 0
    for path, positions in conversion.shards:
        if path.exists() and (container.is_folder or default_index_path(path).exists()):
            _verify_existing(conversion, path, positions, advance)
            existing += 1
            continue
        with _new_shard(container, path) as (temporary, index_path):
            container.write(temporary, _read_records(conversion.index, positions, advance))
            text = container.build_index(temporary)
            if text is not None:
                index_path.write_text(text, encoding="utf-8")
            _verify(conversion, temporary, index_path, positions, advance)
    return existing


@contextmanager
def _new_shard(container: RecordFormat, path: Path) -> Iterator[tuple[Path, Path]]:
    """Returns a context with temporary paths of a shard and its index.

    The context removes temporary files that an interrupted conversion left. It renames both files to their
    final paths when it ends without an exception.
    """
    if container.is_folder:
        with new_folder(path) as temporary:
            yield temporary, default_index_path(temporary)
        return
    with atomic_path(default_index_path(path)) as index_path, atomic_path(path) as temporary:
        yield temporary, index_path


def _read_records(index: FileIndex, positions: range, advance: Advance) -> Iterator[ImageRecord]:
    for position in positions:
        suffix = Path(index.name(position)).suffix.lower()
        yield ImageRecord(f"{position:08d}{suffix}", _read(index, position), int(index.labels[position]))
        advance(0.5)


def _read(index: FileIndex, position: int) -> bytes:
    try:
        return index.read(position)
    except DecodeError as error:
        raise bad_image_error(to_bad_images(index, {position: str(error)})) from None


def _verify_existing(conversion: Conversion, path: Path, positions: range, advance: Advance) -> None:
    """Verifies a shard that an earlier conversion wrote, and that may have been damaged since then."""
    try:
        _verify(conversion, path, default_index_path(path), positions, lambda images: advance(2 * images))
    except BadImageError:
        raise
    except UserError as error:
        raise UserError(
            f"{path} was complete after an earlier conversion, but is damaged now: {error}; remove the shard "
            "to write it again"
        ) from None


def _verify(conversion: Conversion, path: Path, index_path: Path, positions: range, advance: Advance) -> None:
    """Reads a shard with its index, as training does, and compares it with the images."""
    shard = conversion.container.open(path, index_path, OpenFiles())
    index = conversion.index
    if not np.array_equal(shard.labels, index.labels[positions.start : positions.stop]):
        raise UserError(f"{path}: labels in the shard differ from labels of the images; check the disk")
    for number, position in enumerate(positions):
        expected = _read(index, position)
        try:
            written = shard.read(number)
        except DecodeError as error:
            raise UserError(f"{path}: {shard.where(number)} can't be read: {error}") from None
        if written != expected:
            raise UserError(
                f"{path}: {shard.where(number)} differs from {one_line(index.name(position))}; "
                "this image may have changed since it was written"
            )
        advance(0.5)
