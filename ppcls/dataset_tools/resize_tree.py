"""Copies a folder of images, with the large ones made smaller: what is read and decoded in each epoch.

Each file appears whole, with its source's time of change, by which it is known to be done: the same command
goes on after a kill, and makes anew what has changed. Nothing in the source is written, and none of it
linked: who edits a file of the copy does not edit the source.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ppcls.config.sections.dataset import IMAGE_EXTENSIONS
from ppcls.data.images.header import DecodeError
from ppcls.data.images.paths import find_unsafe_paths
from ppcls.data.index.files import read_image
from ppcls.dataset_tools.shrink import shrink
from ppcls.errors import UserError
from ppcls.files import atomic_path, retry_io, write_text

_PLAN = "resize.json"
_CHUNK = 256  # files handed to the threads at a time, so that an interrupt waits for few
_REMAINS = re.compile(r"\.[0-9a-f]{8}\.(.+)", re.DOTALL)  # what a kill leaves of ppcls.files.atomic_path


@dataclass(frozen=True)
class ResizeJob:
    """What becomes of which folder.

    Attributes:
        source: Folder to read.
        target: Folder to write.
        most: Pixels of the short side.
        quality: 1 to 100, of JPEG and WebP.
        files: All files below the source, relative to it, in the order of their names.
    """

    source: Path
    target: Path
    most: int
    quality: int
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ResizeResult:
    """What became of a file.

    Attributes:
        done: What was done; ``"other"`` is the copy of what is no image.
        before: Bytes of the source.
        after: Bytes of what was made of it.
        reason: Why an image is bad.
    """

    done: Literal["shrunk", "copied", "there", "other", "bad"]
    before: int = 0
    after: int = 0
    reason: str = ""


def plan_resize(
    source: Path, target: Path, most: int, quality: int, *, follow_links: bool = False
) -> ResizeJob:
    """Begins to resize a folder, or finds the work that was begun; makes the folders.

    Args:
        source: Folder to read.
        target: Folder to write; made if it is missing.
        most: Pixels of the short side.
        quality: 1 to 100.
        follow_links: Whether to take what links lead to, out of ``source``.

    Raises:
        UserError: There is no such folder, it holds no images or links that lead out of it, or the target is
            within it or holds something else.
    """
    if not source.is_dir():
        raise UserError(
            f"{source}: {'is a file, expected a folder' if source.exists() else 'no such folder'}"
        )
    if target.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{target} is within {source}, which is not to be changed; choose another --out")
    mine = {"source": str(source.resolve()), "max_size": most, "quality": quality}
    _refuse_other(target, mine)
    folders, files = _walk(source, follow_links)
    if not any(is_image(each) for each in files):
        raise UserError(f"{source}: no images; expected files ending in {', '.join(IMAGE_EXTENSIONS)}")
    target.mkdir(parents=True, exist_ok=True)
    write_text(target / _PLAN, json.dumps(mine) + "\n")
    for folder in folders:
        (target / folder).mkdir(exist_ok=True)
        _remove_remains(source / folder, target / folder)
    return ResizeJob(source, target, most, quality, files)


def is_image(path: Path) -> bool:
    """Whether a file is an image by its ending."""
    return path.name.lower().endswith(IMAGE_EXTENSIONS)


def resize_tree(
    resizing: ResizeJob, threads: int, advance: Callable[[int], object]
) -> dict[Path, ResizeResult]:
    """Makes what is missing, on several threads: decoders and encoders work without Python's lock.

    Args:
        resizing: What to do.
        threads: How many.
        advance: ProgressHooks how many files more are done.

    Returns:
        What became of each file. Bad images are not in the target; all else is.

    Raises:
        OSError: The target can't be written.
    """
    outcomes: dict[Path, ResizeResult] = {}
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(resizing.files), _CHUNK):
            chunk = resizing.files[begin : begin + _CHUNK]
            for path, outcome in zip(chunk, pool.map(lambda each: _make(resizing, each), chunk), strict=True):
                outcomes[path] = outcome
                advance(1)
    return outcomes


def _make(resizing: ResizeJob, path: Path) -> ResizeResult:
    source, target = resizing.source / path, resizing.target / path
    if not is_image(path):
        return _copy(source, target)
    try:
        stat = retry_io(source.stat)
        if _is_done(target, stat):
            return ResizeResult("there", stat.st_size, target.stat().st_size)
        encoded = read_image(os.fsencode(source))
        small = shrink(encoded, resizing.most, resizing.quality)
    except DecodeError as error:
        return ResizeResult("bad", reason=str(error))
    except OSError as error:  # of the source: reading is all that was tried
        return ResizeResult("bad", reason=(error.strerror or str(error)).lower())
    data = encoded if small is None else small
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return ResizeResult("copied" if small is None else "shrunk", len(encoded), len(data))


def _copy(source: Path, target: Path) -> ResizeResult:
    stat = retry_io(source.stat)
    if not _is_done(target, stat):
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
            os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return ResizeResult("other", stat.st_size, stat.st_size)


def _is_done(target: Path, source: os.stat_result) -> bool:
    return target.is_file() and target.stat().st_mtime_ns == source.st_mtime_ns


def _refuse_other(target: Path, mine: dict[str, Any]) -> None:
    """Raises where ``target`` holds anything but what was begun likewise."""
    path = target / _PLAN
    if path.is_file():
        begun = json.loads(path.read_text(encoding="utf-8"))
        changed = [
            f"{key} was {begun.get(key)}, is {mine[key]}" for key in mine if begun.get(key) != mine[key]
        ]
        if changed:
            raise UserError(
                f"{target} holds other work: {'; '.join(changed)}; remove it or choose another --out"
            )
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and was not made by this tool; choose another folder with --out")


def _walk(source: Path, follow_links: bool) -> tuple[list[Path], tuple[Path, ...]]:
    """Returns all folders, parents first, and all files but those of an earlier resizing's own."""

    def fail(error: OSError) -> None:
        raise error

    folders: list[Path] = []
    files: list[Path] = []
    links: list[Path] = []
    for name, below, names in os.walk(source, onerror=fail, followlinks=follow_links):
        here = Path(name).relative_to(source)
        folders.append(here)
        below.sort()
        files += [here / each for each in sorted(names)]
        links += [here / each for each in below if (source / here / each).is_symlink()]
    if not follow_links:
        out = [files[at] for at in find_unsafe_paths(source, map(os.fsencode, files)).links]
        if refused := [*links, *out]:
            raise UserError(
                f"{source / refused[0]} is a link to a folder, or out of {source} ({len(refused)} such); "
                "if they are yours, use --follow-links"
            )
    return folders, tuple(each for each in files if each != Path(_PLAN))


def _remove_remains(source: Path, target: Path) -> None:
    """Removes what a kill left half written in a folder; what the source has by such a name stays."""
    for path in target.iterdir():
        match = _REMAINS.fullmatch(path.name)
        if match and (source / match[1]).exists() and not (source / path.name).exists():
            path.unlink()
