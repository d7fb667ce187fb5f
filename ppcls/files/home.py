"""A home folder in which Paddle can write while it compiles a model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class WritableHome:
    """A home folder in which Paddle can write: that of the user, or else a temporary one.

    `paddle.jit.to_static` writes rewritten functions to files in ``~/.cache/paddle``, and has no setting for
    another folder (Paddle 2.6 and 3.3). In a container, the home folder is often missing or read-only.

    Args:
        folder: Folder in which the temporary home is created, if it is needed. None for that of the system.

    Raises:
        OSError: The temporary home can't be created.
    """

    def __init__(self, folder: Path | None = None) -> None:
        # It is removed with this object, because a later call may compile for other shapes.
        self._temporary = None
        if not _is_writable(_cache_folder()):
            self._temporary = tempfile.TemporaryDirectory(prefix=".home-", dir=folder)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Sets the environment variable ``HOME`` within the block, if the user's home is not writable."""
        if self._temporary is None:
            yield
            return
        before = os.environ.get("HOME")
        os.environ["HOME"] = self._temporary.name
        try:
            yield
        finally:
            if before is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = before

    def remove(self) -> None:
        """Removes the temporary home."""
        if self._temporary is not None:
            self._temporary.cleanup()


@contextmanager
def writable_home(folder: Path) -> Iterator[None]:
    """Sets another home folder within the block, if Paddle cannot write in the user's one.

    Args:
        folder: Folder that exists and is writable. The other home is a temporary folder in it.
    """
    home = WritableHome(folder)
    try:
        with home.used():
            yield
    finally:
        home.remove()


def _cache_folder() -> Path | None:
    """Returns the folder in which Paddle writes while it compiles a model; None without a home folder."""
    try:
        return Path.home() / ".cache" / "paddle" / "to_static_tmp"
    except RuntimeError:  # the user has no home folder, and HOME is not set
        return None


def _is_writable(folder: Path | None) -> bool:
    """Returns whether files can be written in a folder, or the folder can be created."""
    if folder is None:
        return False
    # Path.exists raises an error for the home of another user.
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
