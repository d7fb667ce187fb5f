"""A home folder in which Paddle can write while it compiles a model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writable_home(folder: Path) -> Iterator[None]:
    """Sets another home folder within the block, if Paddle cannot write in the user's one.

    `paddle.jit.to_static` writes rewritten functions to files in ``~/.cache/paddle``, and has no setting for
    another folder (Paddle 2.6 and 3.3). In a container, the home folder is often missing or read-only.

    Args:
        folder: Folder that exists and is writable. The other home is a temporary folder in it.
    """
    if unwritable_cache() is None:
        yield
        return
    before = os.environ.get("HOME")
    with tempfile.TemporaryDirectory(prefix=".home-", dir=folder) as home:
        os.environ["HOME"] = home
        try:
            yield
        finally:
            if before is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = before


def unwritable_cache() -> Path | None:
    """Returns the folder in which Paddle writes while it compiles a model, or None if it is writable."""
    try:
        home = Path.home()
    except RuntimeError:  # the user has no home folder, and HOME is not set
        return Path("~/.cache/paddle")
    folder = home / ".cache" / "paddle" / "to_static_tmp"
    return None if _is_writable(folder) else folder


def _is_writable(folder: Path) -> bool:
    """Returns whether files can be written in a folder, or the folder can be created."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
