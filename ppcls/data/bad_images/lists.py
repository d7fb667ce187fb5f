r"""Bad images: which a batch failed on, and lists of them in files.

A list has a line an image: path, where it is listed, and the reason, with tabs between. A backslash, control
characters and bytes that are no UTF-8 are written as ``\x5c``, so any file name survives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ppcls.config.sections.loader import Split
from ppcls.config.sections.transform import Transform
from ppcls.data.index.read import Index
from ppcls.data.transforms.numpy_ops import DecodeError, apply
from ppcls.errors import UserError
from ppcls.files import write_text

_SHOWN = 10


class BadImageError(UserError):
    """Images that can't be read or decoded, each with its place in the list and the reason."""


class TooManyBadImagesError(BadImageError):
    """Bad images were gone on without, until there were too many."""


@dataclass(frozen=True)
class BadImage:
    """An image that can't be read or decoded.

    Attributes:
        name: The file that holds it, as an index names it.
        where: Where it is listed.
        reason: What is wrong with it.
    """

    name: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.where}): {self.reason}"


def write_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    """Writes a list of bad images, in place of what was there."""
    write_text(path, "".join(map(_line, bad)))


def read_bad_images(path: Path) -> list[BadImage]:
    """Reads a list that `write_bad_images` wrote.

    Raises:
        UserError: It can't be read, or a line is wrong.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: can't read this list of bad images: {error.strerror}") from None
    bad = []
    for number, line in enumerate(lines, start=1):
        parts = [_unescape(each) for each in line.split(b"\t")]
        if not line:
            continue
        if len(parts) != 3:
            raise UserError(f"{path}, line {number}: expected path, where and reason with tabs between them")
        bad.append(BadImage(*parts))
    return bad


def _line(bad: BadImage) -> str:
    return "\t".join(map(_escape, (bad.name, bad.where, bad.reason))) + "\n"


def _escape(text: str) -> str:
    return re.sub(r"[\\\x00-\x1f\x7f\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", text)


def _unescape(text: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text))


def append_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    """Adds to a list of bad images, which it makes where it is missing; other processes may do so too.

    Raises:
        UserError: It can't be written.
    """
    text = "".join(map(_line, bad)).encode("utf-8")
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:  # one write, so that lines of two processes don't mix
            file.write(text)
    except OSError as error:
        raise UserError(f"{path}: can't write this list of bad images: {error.strerror}") from None


def to_bad_images(index: Index, bad: Mapping[int, str]) -> list[BadImage]:
    """Returns what `look_at` found, by name instead of position."""
    return [BadImage(index.name(each), index.where(each), reason) for each, reason in bad.items()]


def find_undecodable(index: Index, decoder: Transform, positions: Iterable[int]) -> dict[int, str]:
    """Reads and decodes samples.

    Args:
        index: The samples.
        decoder: The chain's first transform.
        positions: Of the samples.

    Returns:
        Those that can't be read or decoded, by position, with the reason.
    """
    bad = {}
    for position in dict.fromkeys(positions):
        try:
            apply(decoder, index.read(position), ())
        except DecodeError as reason:
            bad[position] = str(reason)
    return bad


@contextmanager
def suggest_skipping(splits: Mapping[str, Split]) -> Iterator[None]:
    """Has the error of a bad image that ends a run say how to go on without such images.

    Args:
        splits: The data sets that the run is fed with, by their places in ``DataLoader``.
    """
    try:
        yield
    except TooManyBadImagesError:
        raise
    except BadImageError as error:
        strict = [place for place, each in splits.items() if each.dataset.on_error == "raise"]
        if not strict:
            raise
        skip = " ".join(f"DataLoader.{place}.dataset.on_error=skip" for place in strict)
        raise BadImageError(
            f"{error}; mend or remove it, or go on without such images by -o {skip}; tools/dataset.py check "
            "lists them all"
        ) from None


def bad_image_error(bad: Sequence[BadImage]) -> BadImageError:
    """Returns the error that shows the first ten bad images."""
    shown = [str(each) for each in bad[:_SHOWN]]
    more = [f"… and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
    return BadImageError("\n".join([*shown, *more]))
