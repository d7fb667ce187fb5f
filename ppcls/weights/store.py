"""Stores checkpoint folders and links to them. A folder appears only when it is complete."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ppcls.errors import UserError
from ppcls.files import new_folder, print_error, real_path
from ppcls.files.temporary import temporary_sibling
from ppcls.weights.manifest import (
    MANIFEST,
    DamagedError,
    Manifest,
    read_manifest,
    verify,
    write_file,
    write_manifest,
)

LATEST = "latest"
BEST = "best_model"
_CHECKPOINT = re.compile(r"step_\d{8,}(_\d+)?")
_LEFTOVER = re.compile(r"\.[0-9a-f]{8}\.step_\d{8,}(_\d+)?")
_LINK = re.compile(r"(latest|best_model(_\d+)?|epoch_\d+)|\.(latest|best_model(_\d+)?|epoch_\d+)\.new")


class Store:
    """The checkpoints in one folder, and the links to them.

    Args:
        root: Folder that contains the links and the folder ``checkpoints/``, which is created if missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "checkpoints"
        # Temporary folders that exist now and still exist at the first save were left by killed runs.
        self._leftovers = list(self._matching(_LEFTOVER))

    def folders(self) -> dict[Path, int]:
        """Returns the serial number of each checkpoint, or -1 if its manifest can't be read."""
        return {folder: _serial(folder) for folder in self._matching(_CHECKPOINT)}

    def holds_run(self) -> bool:
        """Returns whether the folder contains a run, also if a copy of the folder lost its links."""
        return (self.root / LATEST).is_symlink() or next(self.complete(), None) is not None

    def check_places(self) -> None:
        """Checks that nothing else is in the places of the links and of the folder of checkpoints.

        Raises:
            UserError: A link is a folder or a file, such as after a copy that follows links; or
                ``checkpoints`` is not a folder.
        """
        fix = "move it away, or choose another folder with --output (Global.output_dir)"
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise UserError(
                f"{self.folder}: expected a folder or nothing, found a file or a broken link; {fix}"
            )
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if _LINK.fullmatch(path.name) and not path.is_symlink():
                kind = "folder" if path.is_dir() else "file"
                raise UserError(f"{path}: expected a link to a checkpoint or nothing, found a {kind}; {fix}")

    def restore_links(self) -> list[str]:
        """Creates the links again after a copy that lost them, and returns lines for the log about them.

        Zip files and many programs that copy folders contain an empty folder, a small file or a copy of the
        checkpoint in place of a link, or nothing. Without links, the next save would remove checkpoints.

        Raises:
            OSError: A link can't be created.
        """
        if (self.root / LATEST).is_symlink():  # all links are created together
            return []
        checkpoints = dict(self.complete())
        if not checkpoints:
            return []
        for path in [path for path in self.root.iterdir() if _LINK.fullmatch(path.name)]:
            if _is_lost(path, checkpoints):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        ordered = sorted(checkpoints.items(), key=lambda item: item[1].serial)
        targets = {LATEST: ordered[-1][0]}
        scored = [(folder, manifest.score) for folder, manifest in ordered if manifest.score is not None]
        if scored:
            targets[BEST] = max(scored, key=lambda item: item[1])[0]  # of equal ones, the first
        for folder, manifest in ordered:
            if folder not in targets.values():
                targets.setdefault(f"epoch_{manifest.epoch}", folder)
        restored = [role for role in targets if not os.path.lexists(self.root / role)]
        for role in restored:
            self.link(role, targets[role])
        names = ", ".join(f"{role} -> {targets[role].name}" for role in restored)
        return [f"{self.root}: a copy of this folder lost its links; restored: {names}"] if restored else []

    def complete(self) -> Iterator[tuple[Path, Manifest]]:
        """Yields the undamaged checkpoints with their manifests."""
        for folder in self.folders():
            try:
                yield folder, verify(folder)
            except DamagedError:
                continue

    def _matching(self, pattern: re.Pattern[str]) -> Iterator[Path]:
        """Yields the folders among the checkpoints whose names match. Ignores everything else there."""
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if pattern.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield path

    def write(self, files: Iterable[tuple[str, Iterable[bytes | memoryview]]], manifest: Manifest) -> Path:
        """Writes a checkpoint with the records of its files in the manifest, and returns its folder.

        Args:
            files: Name and content of each file; see `write_file`.
            manifest: Manifest without the records of the files.

        Raises:
            OSError: The checkpoint can't be written. The incomplete folder is removed.
        """
        folder = self.folder / f"step_{manifest.update:08d}"
        copy = 1
        while os.path.lexists(folder):
            copy += 1
            folder = folder.with_name(f"step_{manifest.update:08d}_{copy}")
        with new_folder(folder, sync_each=True) as temporary:
            records = {name: write_file(temporary / name, *parts) for name, parts in files}
            write_manifest(temporary, manifest.model_copy(update={"files": records}))
        return folder

    def link(self, role: str, folder: Path) -> None:
        """Makes the link ``role`` point to a folder, atomically."""
        link = self.root / role
        temporary = link.with_name(f".{role}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(folder, self.root))
        temporary.replace(link)

    def link_best(self, folder: Path, manifest: Manifest, keep: int, *, best: bool) -> None:
        """Inserts a checkpoint into the ranking of links ``best_model``, ``best_model_2`` … by its score.

        Args:
            folder: Folder of the checkpoint.
            manifest: Manifest of the checkpoint. A checkpoint without a score is ranked only if it is the
                best.
            keep: Maximum number of checkpoints in the ranking.
            best: Whether the checkpoint is the best so far.
        """
        links = [BEST, *(f"{BEST}_{rank}" for rank in range(2, keep + 1))]
        rank = 0 if best else len(links)
        score = manifest.score
        judge = manifest.judge
        if not best and score is not None:
            worse = (i for i in range(1, len(links)) if self._score(links[i], judge) < score)
            rank = next(worse, len(links))
        for i in range(len(links) - 1, rank, -1):
            previous = self.root / links[i - 1]
            if previous.is_symlink():
                self.link(links[i], real_path(previous))
        if rank < len(links):
            self.link(links[rank], folder)
        for link, _ in list(self._links()):
            if link.name.startswith(f"{BEST}_") and link.name not in links:
                link.unlink()  # the link is from an earlier, longer ranking

    def best_score(self, judge: str) -> float:
        """Returns the score of ``best_model``; -inf if the link is missing, and inf if the score is unknown.

        Args:
            judge: Name of the metric of the score.
        """
        if not (self.root / BEST).is_symlink():
            return -math.inf
        score = self._score(BEST, judge)
        return score if math.isfinite(score) else math.inf

    def remove_unlinked(self) -> None:
        """Removes checkpoints without a link, and incomplete checkpoints of killed runs.

        A folder without a manifest is kept, because it may belong to the user.
        """
        linked = {target for _, target in self._links()}
        for folder in self._matching(_CHECKPOINT):
            if real_path(folder) not in linked and (folder / MANIFEST).exists():
                # Rename first, so that an interrupted removal leaves no folder that looks like a checkpoint.
                self._leftovers.append(folder.rename(temporary_sibling(folder)))
        while self._leftovers:
            if self._leftovers[-1].exists():
                shutil.rmtree(self._leftovers[-1])
            self._leftovers.pop()

    def preferred_name(self, folder: Path) -> Path:
        """Returns a link to a folder, preferably ``latest``; the folder itself if it has no link."""
        links = sorted(link for link, target in self._links() if target == real_path(folder))
        latest = self.root / LATEST
        return latest if latest in links else (links or [folder])[0]

    def _links(self) -> Iterator[tuple[Path, Path]]:
        for link in self.root.iterdir():
            if link.is_symlink():
                yield link, real_path(link)

    def _score(self, role: str, judge: str | None) -> float:
        """Returns the score of a checkpoint; -inf if it has no score, or the score of another metric."""
        try:
            manifest = read_manifest(self.root / role)
        except DamagedError:
            return -math.inf
        same = manifest.judge == judge or None in (manifest.judge, judge)
        return manifest.score if same and manifest.score is not None else -math.inf


def checkpoint_roots(output_dir: Path, fallback: str | None) -> list[Path]:
    """Returns the folders that may contain a run's checkpoints.

    Args:
        output_dir: Output folder of the run.
        fallback: Value of ``Global.checkpoint_fallback_dir``.
    """
    if fallback is None:
        return [output_dir]
    run = hashlib.blake2b(str(real_path(output_dir)).encode(), digest_size=4).hexdigest()
    return [output_dir, Path(fallback) / f"{output_dir.name}-{run}"]


def newest(role: str, output_dir: Path, fallback: str | None) -> Path | None:
    """Returns the checkpoint that a link points to; None if there is no such link.

    If both folders of a run have the link, the newer checkpoint is returned. For best models, the newer
    checkpoint is also the better one.

    Args:
        role: Name of the link.
        output_dir: Output folder of the run.
        fallback: Value of ``Global.checkpoint_fallback_dir``.
    """
    roots = checkpoint_roots(output_dir, fallback)
    checkpoints = [root / role for root in roots if _has_files(root / role)]
    if checkpoints:
        return max(checkpoints, key=_serial)
    lost = [root for root in roots if _lost_links(root, role)]
    complete = [folder for root in lost if (folder := newest_complete(root)) is not None]
    if not complete:
        return None
    checkpoint = max(complete, key=_serial)
    print_error(
        f"{output_dir}: the link {role} was lost, for example in a zip file; using the newest complete "
        f"checkpoint, {checkpoint}{_better(checkpoint) if role == BEST else ''}"
    )
    return checkpoint


def newest_complete(root: Path) -> Path | None:
    """Returns the newest undamaged checkpoint in an output folder; None without one."""
    folders = Store(root).folders()
    for folder in sorted(folders, key=lambda folder: folders[folder], reverse=True):
        try:
            verify(folder)
        except DamagedError:
            continue
        return folder
    return None


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _lost_links(root: Path, role: str) -> bool:
    """Returns whether a copy lost the links of a run. A run without evaluations never had ``best_model``."""
    return os.path.lexists(root / role) or not (root / LATEST).is_symlink()


def _better(checkpoint: Path) -> str:
    """Returns a note about the checkpoint with the best score, if it is another one; otherwise nothing."""
    scored = [
        (manifest.score, folder, manifest.judge or "score")
        for folder, manifest in Store(checkpoint.parent.parent).complete()
        if manifest.score is not None
    ]
    score, best, judge = max(scored, default=(0.0, checkpoint, ""))
    own = next((other for other, folder, _ in scored if folder == checkpoint), None)
    return "" if own == score or best == checkpoint else f"; {best} was better ({judge} {score:.4f})"


def _is_lost(path: Path, checkpoints: Mapping[Path, Manifest]) -> bool:
    """Returns whether a path is what a copy made of a link. Nothing of the user's is in it."""
    if path.is_symlink():
        return not path.exists()
    if path.is_dir():
        return not any(path.iterdir()) or _is_copy(path, checkpoints)
    with path.open("rb") as file:
        return file.read(20).startswith(b"checkpoints/step_")


def _is_copy(folder: Path, checkpoints: Mapping[Path, Manifest]) -> bool:
    """Returns whether a folder contains the files of one of the checkpoints, and nothing else."""
    try:
        manifest = verify(folder)
    except DamagedError:
        return False
    names = {path.name for path in folder.iterdir()}
    return any(
        manifest == other and names == {path.name for path in original.iterdir()}
        for original, other in checkpoints.items()
    )


def _serial(folder: Path) -> int:
    try:
        return read_manifest(folder).serial
    except DamagedError:
        return -1
