r"""Reads and writes lists of bad images, and raises errors that name bad images.

Each line of a list describes one image by its path, its location in the dataset, and the reason. Tabs
separate the three fields. Backslashes, control characters, and bytes that are not UTF-8 are written as
hexadecimal escapes, such as ``\x5c`` for a backslash. So any file name can be read back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.commands import command_line, set_keys
from ppcls.data.index.protocol import Index
from ppcls.errors import UserError
from ppcls.files import append_bytes, one_line, open_regular, read_regular, write_text

if TYPE_CHECKING:  # the section above uses this folder
    from ppcls.data.section import Split

_SHOWN = 10


class BadImageError(UserError):
    """Images can't be read or decoded. The message gives the location of each image and the reason."""


class TooManyBadImagesError(BadImageError):
    """There are more bad images than ``max_errors`` allows, or no good image is left."""


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
        return f"{one_line(self.name)} ({one_line(self.where)}): {self.reason}"


def to_bad_images(index: Index, reasons: Mapping[int, str]) -> list[BadImage]:
    """Returns a `BadImage` for each item of ``reasons``, a map from positions in ``index`` to reasons."""
    return [BadImage(index.name(at), index.where(at), reason) for at, reason in reasons.items()]


def bad_image_error(bad: Sequence[BadImage]) -> BadImageError:
    """Returns an error that lists the first ten bad images."""
    more = [f"… and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
    return BadImageError("\n".join([*map(str, bad[:_SHOWN]), *more]))


def write_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    """Writes a list of bad images, and replaces an existing file."""
    write_text(path, "".join(map(_format_line, bad)))


def append_bad_images(path: Path, bad: Iterable[BadImage]) -> None:
    """Appends to a list of bad images, and creates the list if it is missing.

    Several processes may append at the same time.

    Raises:
        UserError: The list can't be written.
    """
    text = "".join(map(_format_line, bad)).encode("utf-8")
    if not text:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_bytes(path, text)
    except OSError as error:
        raise UserError(f"{path}: can't write this list of bad images: {error.strerror}") from None


def read_bad_images(path: Path) -> list[BadImage]:
    """Reads a list that `write_bad_images` or `append_bad_images` wrote.

    Raises:
        UserError: The list can't be read, or a line does not have three fields.
    """
    try:
        text = read_regular(path)
    except OSError as error:
        raise _read_error(path, error) from None
    return _parse_lines(path, text, 0)


class GrowingList:
    """A list of bad images to which several loaders and processes append. Reads only what was appended.

    Args:
        path: The list, which may be missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = (0, 0)  # device and inode of the file that was read
        self._read = 0  # number of bytes that were read
        self._lines = 0
        self._places: set[tuple[str, str]] = set()

    def read_places(self) -> Set[tuple[str, str]]:
        """Returns name and location of all images in the list. The set grows with the list.

        Raises:
            UserError: The list can't be read, or a line does not have three fields.
        """
        try:
            with open_regular(self._path) as file:
                status = os.fstat(file.fileno())
                if self._file != (status.st_dev, status.st_ino) or status.st_size < self._read:
                    self._file = (status.st_dev, status.st_ino)
                    self._read = self._lines = 0
                    self._places = set()
                file.seek(self._read)
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            self._file = (0, 0)
            self._read = self._lines = 0
            self._places = set()
            return self._places
        except OSError as error:
            raise _read_error(self._path, error) from None
        text = text[: text.rfind(b"\n") + 1]  # another process may be writing the last line
        bad = _parse_lines(self._path, text, self._lines)
        self._places |= {(image.name, image.where) for image in bad}
        self._read += len(text)
        self._lines += text.count(b"\n")
        return self._places


def _read_error(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: can't read this list of bad images: {error.strerror}")


def _parse_lines(path: Path, text: bytes, before: int) -> list[BadImage]:
    """Returns the images of some lines, which follow ``before`` other lines."""
    bad = []
    for number, line in enumerate(text.split(b"\n"), start=before + 1):
        fields = [_unescape(field) for field in line.split(b"\t")]
        if not line:
            continue
        if len(fields) != 3:
            raise UserError(
                f"{path}, line {number}: expected path, location and reason, separated by tabs; "
                f"found {len(fields)} fields; create the list again with `ppcls dataset check`"
            )
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
    """Returns a context that appends the options for skipping bad images to the message of `BadImageError`.

    Args:
        splits: Splits of the run. The keys are their names in ``DataLoader``, such as ``Train``.
    """
    try:
        yield
    except TooManyBadImagesError:
        raise
    except BadImageError as error:
        strict = [key for key, split in splits.items() if split.dataset.on_error == "raise"]
        if not strict:
            raise
        skip = set_keys({f"DataLoader.{key}.dataset.on_error": "skip" for key in strict})
        roots = [root for split in splits.values() if (root := split.dataset.auditable_root) is not None]
        check = command_line("dataset", "check", *(roots[:1] or ("-c", "CONFIG")))
        raise BadImageError(
            f"{error}; repair or remove bad images, or skip them with --on-error skip ({skip}); `{check}` "
            "lists all bad images"
        ) from None
