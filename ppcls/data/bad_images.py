r"""Bad images: which a batch failed on, and lists of them in files.

A list has a line an image: path, where it is listed, and the reason, with tabs between. A backslash, control
characters and bytes that are no UTF-8 are written as ``\x5c``, so any file name survives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.config.transform import Transform
from ppcls.data.index import Index
from ppcls.data.numpy_ops import DecodeError, apply
from ppcls.errors import UserError
from ppcls.files import write_text

_SHOWN = 10


class BadImageError(UserError):
    """Images that can't be read or decoded, each with its place in the list and the reason."""


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
    lines = ("\t".join(map(_escape, (each.name, each.where, each.reason))) for each in bad)
    write_text(path, "".join(f"{line}\n" for line in lines))


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


def _escape(text: str) -> str:
    return re.sub(r"[\\\x00-\x1f\x7f\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", text)


def _unescape(text: bytes) -> str:
    return os.fsdecode(re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text))


def describe_sample(index: Index, position: int, reason: str) -> str:
    """Returns ``path (list, line N): reason``."""
    return str(BadImage(index.name(position), index.where(position), reason))


def bad_images(samples: Sequence[str]) -> BadImageError:
    """Returns the error that shows the first ten of what `describe_sample` said."""
    more = [f"… and {len(samples) - _SHOWN} more"] if len(samples) > _SHOWN else []
    return BadImageError("\n".join([*samples[:_SHOWN], *more]))


def explain_failure(
    index: Index, decoder: Transform, positions: NDArray[np.int64], error: Exception
) -> Exception:
    """Finds out which images made a batch fail.

    Args:
        index: The samples.
        decoder: The chain's first transform.
        positions: [N] of the batches that were under way.
        error: What the loader said.

    Returns:
        A `BadImageError` that names the images; ``error`` where all of them decode.
    """
    bad = []
    for position in dict.fromkeys(positions.tolist()):
        try:
            apply(decoder, index.read(position), ())
        except DecodeError as reason:
            bad.append(describe_sample(index, position, str(reason)))
    return bad_images(bad) if bad else error
