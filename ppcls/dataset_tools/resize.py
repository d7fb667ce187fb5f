"""Copies a folder of images and shrinks the large ones, so that each epoch reads and decodes less.

Each file appears complete, with the modification time of its source. So a restarted job skips files that are
done, and repeats those whose source has changed. The copy has no links to the source, so changing it is safe.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ppcls.data.images.header import DecodeError
from ppcls.data.images.paths import find_unsafe_paths
from ppcls.data.index.files import read_image
from ppcls.dataset_tools.jobs import find_job, find_leftovers, map_on_threads
from ppcls.dataset_tools.shrink import shrink
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS, atomic_path, retry_io, write_text

_JOB_FILE = "resize.json"


@dataclass(frozen=True)
class ResizeJob:
    """A folder to copy.

    Attributes:
        source: Folder to read.
        target: Folder to write.
        short_side: Maximum length of the short side in pixels.
        quality: Quality of JPEG and WebP, 1 to 100.
        files: All files in the source, as sorted relative paths.
    """

    source: Path
    target: Path
    short_side: int
    quality: int
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ResizeResult:
    """The result for one file.

    Attributes:
        done: What was done. ``"there"`` was done before, ``"other"`` is a copied file that is not an image.
        before: Bytes of the source.
        after: Bytes of the copy.
        reason: What is wrong with a bad image.
    """

    done: Literal["shrunk", "copied", "there", "other", "bad"]
    before: int = 0
    after: int = 0
    reason: str = ""


def plan_resize(
    source: Path, target: Path, short_side: int, quality: int, *, follow_links: bool = False
) -> ResizeJob:
    """Starts or resumes a job, and creates the folders.

    Args:
        source: Folder to read.
        target: Folder to write; created if missing.
        short_side: Maximum length of the short side in pixels.
        quality: 1 to 100.
        follow_links: Whether to follow links out of ``source``.

    Raises:
        UserError: The source is missing, or has no images or has links out of it; or the target is inside the
            source or contains something else.
    """
    if not source.is_dir():
        problem = "expected a folder, found a file" if source.exists() else "no such folder"
        raise UserError(f"{source}: {problem}")
    if target.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{target} is inside {source}, which must not change; choose another --out")
    settings = {"source": str(source.resolve()), "max_size": short_side, "quality": quality}
    find_job(target / _JOB_FILE, settings)
    folders, files = _list_files(source, follow_links)
    if not any(_is_image(file) for file in files):
        raise UserError(f"{source}: no images; expected files ending in {', '.join(IMAGE_EXTENSIONS)}")
    target.mkdir(parents=True, exist_ok=True)
    write_text(target / _JOB_FILE, json.dumps(settings) + "\n")
    for folder in folders:
        (target / folder).mkdir(exist_ok=True)
        for path, name in find_leftovers(target / folder):
            if (source / folder / name).exists() and not (source / folder / path.name).exists():
                path.unlink()
    return ResizeJob(source, target, short_side, quality, files)


def resize_tree(job: ResizeJob, threads: int, advance: Callable[[int], object]) -> dict[Path, ResizeResult]:
    """Creates the missing files.

    Args:
        advance: Called with 1 after each file.

    Returns:
        The result for each file. The target has all files except bad images.

    Raises:
        OSError: The target can't be written.
    """
    results: dict[Path, ResizeResult] = {}
    for path, result in map_on_threads(lambda path: _resize_file(job, path), job.files, threads):
        results[path] = result
        advance(1)
    return results


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(IMAGE_EXTENSIONS)


def _resize_file(job: ResizeJob, path: Path) -> ResizeResult:
    source, target = job.source / path, job.target / path
    if not _is_image(path):
        return _copy_file(source, target)
    try:
        stat = retry_io(source.stat)
        if _is_done(target, stat):
            return ResizeResult("there", stat.st_size, target.stat().st_size)
        encoded = read_image(os.fsencode(source))
        small = shrink(encoded, job.short_side, job.quality)
    except DecodeError as error:
        return ResizeResult("bad", reason=str(error))
    except OSError as error:  # from reading the source
        return ResizeResult("bad", reason=(error.strerror or str(error)).lower())
    data = encoded if small is None else small
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return ResizeResult("copied" if small is None else "shrunk", len(encoded), len(data))


def _copy_file(source: Path, target: Path) -> ResizeResult:
    stat = retry_io(source.stat)
    if not _is_done(target, stat):
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
            os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return ResizeResult("other", stat.st_size, stat.st_size)


def _is_done(target: Path, source: os.stat_result) -> bool:
    return target.is_file() and target.stat().st_mtime_ns == source.st_mtime_ns


def _list_files(source: Path, follow_links: bool) -> tuple[list[Path], tuple[Path, ...]]:
    """Returns all folders, parents first, and all files except the job file of an earlier resizing."""

    def fail(error: OSError) -> None:
        raise error

    folders: list[Path] = []
    files: list[Path] = []
    links: list[Path] = []
    for name, below, names in os.walk(source, onerror=fail, followlinks=follow_links):
        folder = Path(name).relative_to(source)
        folders.append(folder)
        below.sort()
        files += [folder / file for file in sorted(names)]
        links += [folder / sub for sub in below if (source / folder / sub).is_symlink()]
    if not follow_links:
        links += [files[at] for at in find_unsafe_paths(source, map(os.fsencode, files)).links]
        if links:
            raise UserError(
                f"{source / links[0]} is a link to a folder, or out of {source} ({len(links)} in total); "
                "if you trust them, use --follow-links"
            )
    return folders, tuple(file for file in files if file != Path(_JOB_FILE))
