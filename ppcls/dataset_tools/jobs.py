"""What the dataset tools share: jobs that can be resumed, and work on threads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ppcls.errors import UserError

_T = TypeVar("_T")
_R = TypeVar("_R")
_CHUNK = 256  # items
_LEFTOVER = re.compile(r"\.[0-9a-f]{8}\.(.+)", re.DOTALL)  # see ppcls.files.temporary_sibling


def map_on_threads(
    function: Callable[[_T], _R], items: Sequence[_T], threads: int
) -> Iterator[tuple[_T, _R]]:
    """Yields each item with the result of a function, which runs on threads. The order is that of ``items``.

    Decoders and encoders release Python's lock. Items are submitted in chunks, so that an interrupt waits
    only for the current chunk.
    """
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(items), _CHUNK):
            chunk = items[begin : begin + _CHUNK]
            yield from zip(chunk, pool.map(function, chunk), strict=True)


def find_job(file: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the content of the job file of an earlier start, or None if the output folder is new or empty.

    Args:
        file: Job file in the output folder.
        settings: Settings that an earlier start must have had, too.

    Raises:
        UserError: The folder was created with other settings, or not by this tool.
    """
    folder = file.parent
    if file.is_file():
        saved: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        changed = [
            f"{key} was {saved.get(key)}, is {value}"
            for key, value in settings.items()
            if saved.get(key) != value
        ]
        if changed:
            raise other_settings(folder, "; ".join(changed))
        return saved
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and was not created by this tool; choose another folder with --out")
    return None


def other_settings(folder: Path, changes: str) -> UserError:
    """Returns the error for an output folder that was created with other settings."""
    return UserError(
        f"{folder} was created with other settings: {changes}; remove it or choose another --out"
    )


def find_leftovers(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the temporary files of a killed job in a folder, each with the name that it would have got."""
    for path in folder.iterdir():
        if match := _LEFTOVER.fullmatch(path.name):
            yield path, match[1]
