"""Converts image files into record files, shard by shard, and verifies them.

A shard appears complete and verified or not at all, so a killed conversion resumes at the first missing
shard.
"""

from __future__ import annotations

import hashlib
import json
import shutil
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
from ppcls.dataset_tools.jobs import find_job, find_leftovers, other_settings
from ppcls.errors import UserError
from ppcls.files import atomic_path, new_folder, write_text

_JOB_FILE = "convert.json"
Advance = Callable[[float], None]


@dataclass(frozen=True)
class Conversion:
    """Images and the shards to write.

    Attributes:
        index: The images.
        container: Format to write.
        folder: Folder of the shards.
        ends: [S] end position of the images of each shard.
    """

    index: FileIndex
    container: RecordFormat
    folder: Path
    ends: tuple[int, ...]

    @property
    def shards(self) -> list[tuple[Path, range]]:
        """The path of each shard and the positions of its images."""
        count, begins = len(self.ends), (0, *self.ends)
        return [
            (self.folder / f"shard-{number:05d}-of-{count:05d}{self.container.suffix}", range(begin, end))
            for number, (begin, end) in enumerate(zip(begins, self.ends, strict=False))
        ]


def split_evenly(images: int, shards: int) -> tuple[int, ...]:
    """Returns the end of each shard, for shards whose numbers of images differ by at most one.

    Raises:
        UserError: There are fewer images than shards.
    """
    if shards > images:
        raise UserError(f"{shards} shards for {images} images: expected at least one image per shard")
    return tuple(images * (number + 1) // shards for number in range(shards))


def split_by_size(sizes: NDArray[np.int64], most: int) -> tuple[int, ...]:
    """Returns the end of each shard, for shards with at most ``most`` bytes of images, or with one image.

    Args:
        sizes: [N] bytes of each image, N > 0.
        most: Maximum bytes of images per shard.
    """
    ends, filled = [], 0
    for position, size in enumerate(sizes.tolist()):
        if filled and filled + size > most:
            ends.append(position)
            filled = 0
        filled += size
    return (*ends, len(sizes))


def file_sizes(index: FileIndex) -> NDArray[np.int64]:
    """Returns the bytes of each file, [N].

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
        container: Format to write.
        folder: Folder of the shards; created if missing.
        split: The user's settings for ``ends``, to recognize the conversion when it resumes.
        ends: Returns the end of each shard; called only for a new conversion.

    Raises:
        UserError: The folder contains something else, or another conversion.
    """
    source = str(index.root.resolve())
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
        raise other_settings(folder, "the paths or labels of the source have changed")
    return Conversion(index, container, folder, tuple(saved["ends"]))


def convert(conversion: Conversion, advance: Advance) -> int:
    """Writes the missing shards and verifies all of them.

    Args:
        advance: Called with the progress in images: a half when written and a half when verified.

    Returns:
        Number of shards that existed already.

    Raises:
        UserError: An image can't be read or stored, or the content of a shard is wrong. Existing shards
            remain unchanged.
    """
    _remove_leftovers(conversion)
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


def _remove_leftovers(conversion: Conversion) -> None:
    """Removes the temporary files of an earlier start that was killed."""
    names = {file.name for path, _ in conversion.shards for file in (path, default_index_path(path))}
    for path, name in find_leftovers(conversion.folder):
        if name in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _new_shard(container: RecordFormat, path: Path) -> Iterator[tuple[Path, Path]]:
    """Yields temporary paths for a shard and its index, which are renamed at the end of the block."""
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
    """Verifies a shard of an earlier start, which may have been damaged since."""
    try:
        _verify(conversion, path, default_index_path(path), positions, lambda images: advance(2 * images))
    except BadImageError:
        raise
    except UserError as error:
        raise UserError(
            f"{path} was complete after an earlier start, but is damaged now; remove it to write it again; "
            f"found: {error}"
        ) from None


def _verify(conversion: Conversion, path: Path, index_path: Path, positions: range, advance: Advance) -> None:
    """Reads a shard with its index, like training does, and compares it with the images."""
    shard = conversion.container.open(path, index_path, OpenFiles())
    index = conversion.index
    if not np.array_equal(shard.labels, index.labels[positions.start : positions.stop]):
        raise UserError(f"{path}: its labels differ from those that were written; check the disk")
    for number, position in enumerate(positions):
        expected = _read(index, position)
        try:
            written = shard.read(number)
        except DecodeError as error:
            raise UserError(f"{path}: {shard.where(number)} can't be read: {error}") from None
        if written != expected:
            raise UserError(
                f"{path}: {shard.where(number)} differs from {index.name(position)}; "
                "that file may have changed during the conversion"
            )
        advance(0.5)
