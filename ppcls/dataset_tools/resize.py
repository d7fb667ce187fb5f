"""Copies a folder of images and shrinks large images, so that training reads and decodes less.

A copied file appears only when it is complete, and has the modification time of its source. So a restarted
job skips complete files, and repeats files whose source has changed. The copy has no links to the source, so
changes of the copy do not affect the source.
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
from ppcls.dataset_tools.jobs import find_job, map_on_threads
from ppcls.dataset_tools.shrink import shrink
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS, atomic_path, real_path, retry_io, write_text
from ppcls.files.temporary import find_leftovers, remove_leftover

_JOB_FILE = "resize.json"


@dataclass(frozen=True)
class ResizeJob:
    """Settings for copying a folder.

    Attributes:
        source: Folder to read.
        target: Folder to write.
        short_side: Maximum length of the short side in pixels.
        quality: Quality of JPEG and WebP, 1 to 100.
        files: Relative paths of all files in the source, sorted.
    """

    source: Path
    target: Path
    short_side: int
    quality: int
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ResizeResult:
    """Result of copying one file.

    Attributes:
        done: ``"shrunk"`` or ``"copied"`` for an image; ``"there"`` for an image that an earlier run wrote;
            ``"other"`` for a copied file that is not an image; ``"bad"`` for an image that can't be decoded.
        before: Size of the source in bytes.
        after: Size of the copy in bytes.
        reason: What is wrong with a bad image.
    """

    done: Literal["shrunk", "copied", "there", "other", "bad"]
    before: int = 0
    after: int = 0
    reason: str = ""


def plan_resize(
    source: Path, target: Path, short_side: int, quality: int, *, follow_links: bool = False
) -> ResizeJob:
    """Starts or resumes a job, and creates the folders of the copy.

    Args:
        source: Folder to read.
        target: Folder to write, which is created if it is missing.
        short_side: Maximum length of the short side in pixels.
        quality: Quality of JPEG and WebP, 1 to 100.
        follow_links: Whether to follow links to folders, and links that lead out of ``source``.

    Raises:
        UserError: The source is missing, or has no images, or has links that must not be followed; or the
            target is inside the source, or contains something else.
    """
    if not source.is_dir():
        problem = "expected a folder of images, found a file" if source.exists() else "no such folder"
        raise UserError(f"{source}: {problem}")
    if real_path(target).is_relative_to(real_path(source)):
        raise UserError(
            f"{target} is inside {source}, which must not change; choose another folder with --out"
        )
    settings = {"source": str(real_path(source)), "max_size": short_side, "quality": quality}
    find_job(target / _JOB_FILE, settings)
    folders, files = _list_files(source, follow_links)
    if not any(_is_image(file) for file in files):
        raise UserError(f"{source}: no images; expected files that end in {', '.join(IMAGE_EXTENSIONS)}")
    target.mkdir(parents=True, exist_ok=True)
    write_text(target / _JOB_FILE, json.dumps(settings) + "\n")
    for folder in folders:
        (target / folder).mkdir(exist_ok=True)
        for path, name in find_leftovers(target / folder):
            if (source / folder / name).exists() and not (source / folder / path.name).exists():
                remove_leftover(path)
    return ResizeJob(source, target, short_side, quality, files)


def resize_tree(job: ResizeJob, threads: int, advance: Callable[[int], object]) -> dict[Path, ResizeResult]:
    """Creates the missing files of the copy.

    Args:
        job: Settings and files.
        threads: Number of threads.
        advance: Called with 1 after each file.

    Returns:
        Result for each file. The copy has all files except bad images.

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
    source = job.source / path
    target = job.target / path
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
    with atomic_path(target, clean=False) as temporary:
        temporary.write_bytes(data)
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return ResizeResult("copied" if small is None else "shrunk", len(encoded), len(data))


def _copy_file(source: Path, target: Path) -> ResizeResult:
    stat = retry_io(source.stat)
    if not _is_done(target, stat):
        with atomic_path(target, clean=False) as temporary:
            shutil.copyfile(source, temporary)
            os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return ResizeResult("other", stat.st_size, stat.st_size)


def _is_done(target: Path, source: os.stat_result) -> bool:
    return target.is_file() and target.stat().st_mtime_ns == source.st_mtime_ns


def _list_files(source: Path, follow_links: bool) -> tuple[list[Path], tuple[Path, ...]]:
    """Returns relative paths of all folders, parents first, and of all files except the job file."""

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
                f"{source / links[0]} is a link to a folder, or leads out of {source} ({len(links)} such "
                "links in total); if you trust the links, use --follow-links"
            )
    return folders, tuple(file for file in files if file != Path(_JOB_FILE))
