"""Writes image files into a container, shard by shard, and reads back what was written.

A shard appears whole and verified or not at all, so a conversion that was killed goes on with the shard it
was at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.bad_images.lists import BadImageError, bad_image_error, to_bad_images
from ppcls.data.index.files import FileIndex
from ppcls.data.records.shard import ImageRecord, OpenFiles, RecordFormat, default_index_path
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError
from ppcls.files import atomic_path, new_folder, write_text

_PLAN = "convert.json"


@dataclass(frozen=True)
class Conversion:
    """What becomes of which images.

    Attributes:
        index: The images.
        container: The format to write.
        folder: Where the shards go.
        ends: [S] position behind each shard's last image.
    """

    index: FileIndex
    container: RecordFormat
    folder: Path
    ends: tuple[int, ...]

    @property
    def shards(self) -> list[tuple[Path, range]]:
        """Each shard's file and the positions of its images."""
        count, begins = len(self.ends), (0, *self.ends)
        return [
            (self.folder / f"shard-{number:05d}-of-{count:05d}{self.container.suffix}", range(begin, end))
            for number, (begin, end) in enumerate(zip(begins, self.ends, strict=False))
        ]


def split_evenly(images: int, shards: int) -> tuple[int, ...]:
    """Returns where each of ``shards`` ends, their numbers of images equal but for one.

    Raises:
        UserError: There are fewer images than shards.
    """
    if shards > images:
        raise UserError(f"{shards} shards of {images} images: expected at least one image a shard")
    return tuple(images * (number + 1) // shards for number in range(shards))


def split_by_size(sizes: NDArray[np.int64], most: int) -> tuple[int, ...]:
    """Returns where each shard ends so that none has more than ``most`` bytes of images, or one image.

    Args:
        sizes: [N] bytes of each image, N > 0.
        most: Bytes of images a shard.
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
        UserError: A file is missing.
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
    """Begins a conversion, or finds the one that was begun.

    Args:
        index: The images.
        container: The format to write.
        folder: Where to write; made if it is missing.
        split: How the images were asked to be split, to know the conversion again.
        ends: Says where each shard ends; asked for a new conversion only.

    Raises:
        UserError: The folder holds something else, or another conversion.
    """
    mine: dict[str, Any] = {
        "format": container.name,
        "source": str(index.root.resolve()),
        "images": len(index),
        "digest": _digest(index),
        **split,
    }
    path = folder / _PLAN
    if path.is_file():
        begun = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            f"{key} was {begun.get(key)}, is {mine[key]}"
            for key in mine
            if key != "digest" and begun.get(key) != mine[key]
        ]
        if not changed and begun.get("digest") != mine["digest"]:
            changed = ["the source's paths or labels have changed"]
        if changed:
            raise UserError(
                f"{folder} holds another conversion: {'; '.join(changed)}; remove it or choose another --out"
            )
        return Conversion(index, container, folder, tuple(begun["ends"]))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and was not made by this tool; choose another folder with --out")
    made = Conversion(index, container, folder, ends())
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**mine, "ends": made.ends}) + "\n")
    return made


def convert(conversion: Conversion, advance: Callable[[float], None]) -> int:
    """Writes the shards that are missing, and reads all of them back.

    Args:
        conversion: What to do.
        advance: Is told how many images more are done, a half when written and a half when verified.

    Returns:
        How many shards were there already.

    Raises:
        UserError: An image can't be read, the format can't hold it, or a shard reads back otherwise.
            Shards that were there stay as they are.
    """
    there = 0
    for path, positions in conversion.shards:
        if _is_finished(conversion.container, path):
            _verify_finished(conversion, path, positions, advance)
            there += 1
            continue
        _remove_remains(path)
        with _new_shard(conversion.container, path) as (temporary, index_path):
            conversion.container.write(temporary, _records(conversion.index, positions, advance))
            text = conversion.container.build_index(temporary)
            if text is not None:
                index_path.write_text(text, encoding="utf-8")
            _verify(conversion, temporary, index_path, positions, advance)
    return there


def _digest(index: FileIndex) -> str:
    """Returns a fingerprint of paths and labels."""
    digest = hashlib.sha256(index.labels.tobytes())
    for path in index.paths:
        digest.update(bytes(path) + b"\0")
    return digest.hexdigest()


def _is_finished(container: RecordFormat, path: Path) -> bool:
    """Whether the last file of a shard to appear is there."""
    return path.exists() and (container.is_folder or default_index_path(path).exists())


def _remove_remains(path: Path) -> None:
    """Removes what a killed conversion left of a shard: hidden files named after it, of `ppcls.files`."""
    for name in (path.name, default_index_path(path).name):
        for remains in path.parent.glob(f".????????.{name}"):
            if remains.is_dir():
                for file in remains.iterdir():
                    file.unlink()
                remains.rmdir()
            else:
                remains.unlink()


@contextmanager
def _new_shard(container: RecordFormat, path: Path) -> Iterator[tuple[Path, Path]]:
    """Lends paths for a shard and its index, which get their names when the block ends well."""
    if container.is_folder:
        with new_folder(path) as temporary:
            yield temporary, default_index_path(temporary)
        return
    with atomic_path(default_index_path(path)) as index_path, atomic_path(path) as temporary:
        yield temporary, index_path


def _records(index: FileIndex, positions: range, advance: Callable[[float], None]) -> Iterator[ImageRecord]:
    for position in positions:
        ending = Path(index.name(position)).suffix.lower()
        yield ImageRecord(f"{position:08d}{ending}", _read(index, position), int(index.labels[position]))
        advance(0.5)


def _read(index: FileIndex, position: int) -> bytes:
    try:
        return index.read(position)
    except DecodeError as error:
        raise bad_image_error(to_bad_images(index, {position: str(error)})) from None


def _verify_finished(
    conversion: Conversion, path: Path, positions: range, advance: Callable[[float], None]
) -> None:
    """Reads back a shard of an earlier start: a drive may have lost a part of it since."""
    try:
        _verify(conversion, path, default_index_path(path), positions, lambda images: advance(2 * images))
    except BadImageError:
        raise
    except UserError as error:
        raise UserError(
            f"{path}, finished by an earlier start, is not whole now; remove it, and it is written anew; "
            f"found: {error}"
        ) from None


def _verify(
    conversion: Conversion,
    path: Path,
    index_path: Path,
    positions: range,
    advance: Callable[[float], None],
) -> None:
    """Reads a shard back by its index, as training will."""
    shard = conversion.container.open(path, index_path, OpenFiles())
    index = conversion.index
    if not np.array_equal(shard.labels, index.labels[positions.start : positions.stop]):
        raise UserError(
            f"{path}: its labels read back otherwise than they were written; is the disk all right?"
        )
    for number, position in enumerate(positions):
        written = _read(index, position)
        try:
            found = shard.read(number)
        except DecodeError as error:
            raise UserError(f"{path}: {shard.where(number)} can't be read back: {error}") from None
        if found != written:
            raise UserError(
                f"{path}: {shard.where(number)} reads back otherwise than {index.name(position)}; "
                "did that file change meanwhile?"
            )
        advance(0.5)
