"""Which image files the user means by the files and folders that were named."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ppcls.config.sections.dataset import IMAGE_EXTENSIONS
from ppcls.errors import UserError


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Lists images; opens none.

    Args:
        paths: Files, taken whatever their ending; folders, searched with all below them for
            ``IMAGE_EXTENSIONS``; and patterns of both, such as ``photos/**/*.jpg``.

    Returns:
        Each file once: those of a folder sorted, files and folders in the order given.

    Raises:
        UserError: A path that is not there, or a folder that holds no image or can't be read.
    """
    found: dict[Path, None] = {}
    problems: list[str] = []
    for path in [each for named in paths for each in _matching(named)]:
        try:
            images = _walk(path) if path.is_dir() else [path]
        except OSError as error:
            problems.append(f"{error.filename}: can't read this folder: {error.strerror}")
            continue
        if not images:
            problems.append(f"{path}: no images in this folder; expected files ending in {_endings()}")
        elif not path.exists():
            problems.append(f"{path}: no such file or folder")
        found.update(dict.fromkeys(images))
    if problems:
        raise UserError("\n".join(problems))
    return list(found)


def read_paths(lines: Iterable[bytes]) -> list[Path]:
    """Returns the paths that lines name; empty lines are skipped."""
    return [Path(os.fsdecode(line)) for each in lines if (line := each.rstrip(b"\r\n"))]


def _matching(path: Path) -> list[Path]:
    """Returns what a pattern means, sorted; the path itself where it is there, or is no pattern that fits."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    return sorted(map(Path, glob.glob(str(path), recursive=True))) or [path]  # noqa: PTH207 - ** as in a shell


def _endings() -> str:
    return ", ".join(IMAGE_EXTENSIONS)


def _walk(root: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise error

    return sorted(
        Path(folder) / file
        for folder, _, files in os.walk(root, onerror=fail)
        for file in files
        if file.lower().endswith(IMAGE_EXTENSIONS)
    )
