"""One place for checkpoints on a disk: folders that appear whole, and links that name them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ppcls.files import new_folder, temporary_sibling
from ppcls.weights.manifest import DamagedError, Manifest, put, read_manifest, seal

LATEST = "latest"
BEST = "best_model"


class Store:
    """The checkpoints below one folder.

    Args:
        root: Holds the links, and ``checkpoints/``; made where it is missing.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "checkpoints"
        # Temporary folders that are here now and still are at the first save: their runs are dead.
        self._left = list(self.folder.glob(".????????.step_*"))

    def folders(self) -> dict[Path, int]:
        """Returns all checkpoints, with their serial numbers; -1 where a manifest can't be read."""
        return {folder: _serial(folder) for folder in self.folder.glob("step_*")}

    def write(self, files: Iterable[tuple[str, bytes]], manifest: Manifest) -> Path:
        """Writes a checkpoint, whose manifest gets the files' digests.

        Raises:
            OSError: It can't be written; nothing of it is there.
        """
        folder, copy = self.folder / f"step_{manifest.update:08d}", 1
        while folder.exists():
            copy += 1
            folder = folder.with_name(f"step_{manifest.update:08d}_{copy}")
        with new_folder(folder, sync_each=True) as temporary:
            records = {name: put(temporary / name, data) for name, data in files}
            seal(temporary, manifest.model_copy(update={"files": records}))
        return folder

    def link(self, role: str, folder: Path) -> None:
        """Has ``role`` name a folder, in one rename."""
        link = self.root / role
        temporary = link.with_name(f".{role}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(folder, self.root))
        temporary.replace(link)

    def link_best(self, folder: Path, manifest: Manifest, keep: int, *, best: bool) -> None:
        """Puts a folder in its place among ``best_model``, ``best_model_2`` …, and those behind it one on.

        Args:
            folder: Of the checkpoint.
            manifest: Its own; without a score it gets no place.
            keep: How many to name.
            best: Whether it is the best of all so far.
        """
        names = [BEST, *(f"{BEST}_{place}" for place in range(2, keep + 1))]
        place = 0 if best else len(names)
        score, judge = manifest.score, manifest.judge
        if not best and score is not None:
            worse = (each for each in range(1, len(names)) if self._score(names[each], judge) < score)
            place = next(worse, len(names))
        for each in range(len(names) - 1, place, -1):
            before = self.root / names[each - 1]
            if before.is_symlink():
                self.link(names[each], before.resolve())
        if place < len(names):
            self.link(names[place], folder)
        for link, _ in list(self._links()):
            if link.name.startswith(f"{BEST}_") and link.name not in names:
                link.unlink()  # keep was larger

    def remove_unnamed(self) -> None:
        """Removes the folders that no link names, and what killed runs left half-written."""
        named = {target for _, target in self._links()}
        for folder in self.folder.glob("step_*"):
            if folder.resolve() not in named:
                # Renamed first: a removal that is cut off leaves nothing that looks like a checkpoint.
                self._left.append(folder.rename(temporary_sibling(folder)))
        while self._left:
            if self._left[-1].exists():
                shutil.rmtree(self._left[-1])
            self._left.pop()

    def nicest(self, folder: Path) -> Path:
        """Returns a link to a folder, if there is one: ``latest`` rather than ``epoch_3``."""
        named = sorted(link for link, target in self._links() if target == folder.resolve())
        latest = self.root / LATEST
        return latest if latest in named else (named or [folder])[0]

    def _links(self) -> Iterator[tuple[Path, Path]]:
        for link in self.root.iterdir():
            if link.is_symlink():
                yield link, link.resolve()

    def _score(self, role: str, judge: str | None) -> float:
        """Returns a checkpoint's score; less than any where it has none, or one of another metric."""
        try:
            found = read_manifest(self.root / role)
        except DamagedError:
            return -float("inf")
        same = found.judge == judge or None in (found.judge, judge)
        return found.score if same and found.score is not None else -float("inf")


def places(output_dir: Path, fallback: str | None) -> list[Path]:
    """Returns where a run's checkpoints are: in its folder, and in the other place where it has one.

    Args:
        output_dir: Folder of the run.
        fallback: ``Global.checkpoint_fallback_dir``.
    """
    if fallback is None:
        return [output_dir]
    run = hashlib.blake2b(str(output_dir.resolve()).encode(), digest_size=4).hexdigest()
    return [output_dir, Path(fallback) / f"{output_dir.name}-{run}"]


def newest(role: str, output_dir: Path, fallback: str | None) -> Path | None:
    """Returns a run's checkpoint of a role, of two places the newer one; None where there is none.

    Args:
        role: Name of its link. The newer of two best models is the better one, or it were no best model.
        output_dir: See `places`.
        fallback: See `places`.
    """
    found = [each for root in places(output_dir, fallback) if (each := root / role).is_dir()]
    return max(found, key=_serial) if found else None


def _serial(folder: Path) -> int:
    try:
        return read_manifest(folder).serial
    except DamagedError:
        return -1
