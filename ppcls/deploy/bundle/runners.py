"""Copies the programs that run a bundle in several languages into it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from ppcls.errors import UserError
from ppcls.registry import suggest

Runner = Literal["python", "cpp", "js", "web", "java"]

RUNNERS: tuple[Runner, ...] = get_args(Runner)
_SHARED = {"web": ("js/bundle.mjs",)}  # files of other runners
_SOURCES = Path(__file__).parent / "programs"


def parse_runners(text: str) -> tuple[str, ...]:
    """Returns the runners in a comma-separated list.

    Raises:
        UserError: A runner is unknown.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in RUNNERS:
            raise UserError(
                f"--runners: unknown runner '{name}'{suggest(name, RUNNERS)}; expected some of "
                f"{', '.join(RUNNERS)}, separated by commas"
            )
    return names


def write_runners(folder: Path, runners: Sequence[str]) -> None:
    """Copies runners to the folder ``runners`` of a bundle.

    Raises:
        OSError: A file cannot be written.
    """
    for name in runners:
        ignored = shutil.ignore_patterns("__pycache__", "node_modules", "build")
        target = folder / "runners" / name
        shutil.copytree(_SOURCES / name, target, ignore=ignored)
        for shared in _SHARED.get(name, ()):
            shutil.copy(_SOURCES / shared, target)
