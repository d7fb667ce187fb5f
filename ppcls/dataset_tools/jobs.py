"""Provides resumable jobs and work on threads for the dataset tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ppcls.errors import UserError
from ppcls.files import read_regular
from ppcls.files.temporary import remove_leftovers

_T = TypeVar("_T")
_R = TypeVar("_R")
_CHUNK = 256  # number of items that are submitted together


def map_on_threads(
    function: Callable[[_T], _R], items: Sequence[_T], threads: int
) -> Iterator[tuple[_T, _R]]:
    """Runs a function on threads, and yields each item with its result, in the order of ``items``.

    Threads are useful because decoders and encoders release the global interpreter lock. Items are submitted
    in chunks, so that Ctrl-C waits only for the current chunk.
    """
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(items), _CHUNK):
            chunk = items[begin : begin + _CHUNK]
            yield from zip(chunk, pool.map(function, chunk), strict=True)


def find_job(file: Path, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads the job file of an earlier run, and checks that its settings are equal.

    Args:
        file: Path of the job file in the output folder.
        settings: Settings of this run, which the earlier run must also have had.

    Returns:
        Contents of the job file; None if the output folder is missing or empty.

    Raises:
        UserError: The folder was created with other settings, or not by this tool.
    """
    folder = file.parent
    if file.is_file():
        try:
            saved: Any = json.loads(read_regular(file))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{file}: cannot be read: {error}; choose another folder with --out") from None
        if not isinstance(saved, dict):
            raise UserError(f"{file}: expected a JSON object; choose another folder with --out")
        changed = [
            f"{key} was {saved.get(key)} and is now {value}"
            for key, value in settings.items()
            if saved.get(key) != value
        ]
        if changed:
            raise other_settings(folder, "; ".join(changed))
        return saved
    remove_leftovers(file)  # of a process that was killed while it wrote its first file, the job file
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} already exists and was not created by this tool; choose another folder with --out"
        )
    return None


def other_settings(folder: Path, changes: str) -> UserError:
    """Returns the error for an output folder that was created with other settings."""
    return UserError(
        f"{folder} was created with other settings: {changes}; remove the folder, or choose another one with "
        "--out"
    )
