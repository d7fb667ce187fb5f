r"""Bad images, their errors, and files that list them.

A list has one line per image with path, location in the dataset and reason, separated by tabs. Backslashes,
control characters and bytes that are not UTF-8 are written as ``\x5c``, so that any file name can be read
back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ppcls.config.sections.loader import Split
from ppcls.data.index.protocol import Index
from ppcls.errors import UserError
from ppcls.files import read_regular, write_text

_SHOWN = 10


class BadImageError(UserError):
    """Images can't be read or decoded; the text has the location and reason for each."""


class TooManyBadImagesError(BadImageError):
    """More bad images were skipped than allowed."""


@dataclass(frozen=True)
class BadImage:
    """An image that can't be read or decoded.

    Attributes:
        name: File that contains the image.
        where: Location in the dataset, such as a line of the list file.
        reason: What is wrong with the image.
    """

    name: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.where}): {self.reason}"


def to_bad_images(index: Index, reasons: Mapping[int, str]) -> list[BadImage]:
    """Converts reasons by position into bad images by name."""
    return [BadImage(index.name(at), index.where(at), reason) for at, reason in reasons.items()]


def bad_image_error(bad: Sequence[BadImage]) -> BadImageError:
    """Returns the error that lists the first ten bad images."""
    more = [f"… and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
    return BadImageError("\n".join([*map(str, bad[:_SHOWN]), *more]))


def write_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    """Writes or replaces a list of bad images."""
    write_text(path, "".join(map(_format_line, bad)))


def append_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    """Appends to a list of bad images, or creates it. Several processes may append at the same time.

    Raises:
        UserError: The list can't be written.
    """
    text = "".join(map(_format_line, bad)).encode("utf-8")
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:  # a single write, so that lines of processes don't mix
            file.write(text)
    except OSError as error:
        raise UserError(f"{path}: can't write this list of bad images: {error.strerror}") from None


def read_bad_images(path: Path) -> list[BadImage]:
    """Reads a list that `write_bad_images` or `append_bad_images` wrote.

    Raises:
        UserError: The list can't be read, or a line is wrong.
    """
    try:
        lines = read_regular(path).split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: can't read this list of bad images: {error.strerror}") from None
    bad = []
    for number, line in enumerate(lines, start=1):
        fields = [_unescape(field) for field in line.split(b"\t")]
        if not line:
            continue
        if len(fields) != 3:
            raise UserError(f"{path}, line {number}: expected path, location and reason separated by tabs")
        bad.append(BadImage(*fields))
    return bad


def _format_line(bad: BadImage) -> str:
    return "\t".join(map(_escape, (bad.name, bad.where, bad.reason))) + "\n"


def _escape(text: str) -> str:
    return re.sub(r"[\\\x00-\x1f\x7f\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", text)


def _unescape(text: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text))


@contextmanager
def suggest_skipping(splits: Mapping[str, Split]) -> Iterator[None]:
    """Adds to the error of a bad image how to skip such images.

    Args:
        splits: The run's datasets by their keys in ``DataLoader``.
    """
    try:
        yield
    except TooManyBadImagesError:
        raise
    except BadImageError as error:
        strict = [key for key, split in splits.items() if split.dataset.on_error == "raise"]
        if not strict:
            raise
        skip = " ".join(f"DataLoader.{key}.dataset.on_error=skip" for key in strict)
        raise BadImageError(
            f"{error}; repair or remove it, or skip such images with -o {skip}; `ppcls dataset check` "
            "lists all of them"
        ) from None
