"""Notices that another program renamed or removed the output folder of a run while the run writes to it."""

from __future__ import annotations

import os
from pathlib import Path


class OutputFolder:
    """The output folder of a run, which may be renamed or removed during the run.

    Files are written by their path. Without this check, a run would create a second folder at the old path,
    and report that all files are in it.

    Args:
        path: Existing folder.

    Attributes:
        path: Path of the folder when the run started.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._substitute: Path | None = None

    def is_moved(self) -> bool:
        """Returns whether the path no longer leads to the folder."""
        return not self._is_at(self.path)

    def current(self) -> Path:
        """Returns the folder to write to: the folder at its current path, or a new one if it was removed.

        A removed folder is not created again at its path, where another run may have started meanwhile.
        """
        if not self.is_moved():
            return self.path
        return self._renamed() or self._new_path()

    def describe(self) -> str:
        """Returns an error message for a folder that was moved."""
        folder = self.current()
        resume = f"resume with --output {folder} --resume (Global.output_dir, Global.checkpoints=auto)"
        if folder == self._substitute:
            return (
                f"{self.path}: this output folder was removed while the run wrote to it, with its logs and "
                f"checkpoints; the current state is saved in {folder}; {resume}"
            )
        return (
            f"{self.path}: this output folder was renamed to {folder} while the run wrote to it; all files "
            f"are there, and the current state is saved; {resume}"
        )

    def close(self) -> None:
        """Closes the descriptor of the folder."""
        os.close(self._descriptor)

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._descriptor))
        except OSError:  # missing, or removed on a network drive
            return False

    def _renamed(self) -> Path | None:
        path = Path(f"/proc/self/fd/{self._descriptor}").readlink()  # ends with "(deleted)" if removed
        return path if self._is_at(path) else None

    def _new_path(self) -> Path:
        if self._substitute is None:
            number = 1
            self._substitute = self.path.with_name(f"{self.path.name}_recovered")
            while self._substitute.exists():
                number += 1
                self._substitute = self.path.with_name(f"{self.path.name}_recovered_{number}")
        return self._substitute
