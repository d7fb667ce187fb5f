"""What a run keeps on disk: one folder a checkpoint, and links that say what each is.

``checkpoints/step_00000360`` is written whole under another name, read back, and then renamed; ``latest``,
``best_model`` and ``epoch_N`` are links to such folders, each replaced in one rename. A folder that no
link names is removed, after the newer one is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import paddle

from ppcls import __version__
from ppcls.config.schema import Config
from ppcls.engine.manifest import MANIFEST, DamagedError, Manifest, put, read_manifest, seal, verify
from ppcls.engine.paddleclas import is_paddleclas
from ppcls.engine.snapshot import take
from ppcls.engine.state import TrainState
from ppcls.errors import UserError
from ppcls.files import new_folder

LATEST = "latest"
BEST = "best_model"
_VERSIONS = {"ppcls": __version__, "paddle": paddle.__version__}


class Checkpoints:
    """The checkpoints of one output folder.

    Args:
        output_dir: Folder of the run.
        config: Written into each checkpoint; says how many of the best to keep.

    Attributes:
        passed_over: What is wrong with damaged checkpoints that `find` did not take.
    """

    def __init__(self, output_dir: Path, config: Config) -> None:
        self._output_dir, self._config = output_dir, config
        self._folder = output_dir / "checkpoints"
        self.passed_over: list[str] = []
        # Temporary folders that are here now and still are at the first save: their runs are dead.
        self._left = list(self._folder.glob(".????????.step_*"))

    def save(self, state: TrainState, roles: Iterable[str], score: float | None = None) -> None:
        """Writes the state as `save_alone` does, while the other ranks wait for rank 0.

        Raises:
            UserError: It can't be written, or the model is not finite any more; all earlier
                checkpoints are as they were.
        """
        self.save_alone(state, roles, score)
        if state.runtime.world > 1:
            state.runtime.progress.tell("waiting for all processes after a checkpoint", patient=True)
            paddle.distributed.barrier()

    def save_alone(self, state: TrainState, roles: Iterable[str], score: float | None = None) -> None:
        """Writes the state on rank 0, and nothing on others; waits for none.

        Args:
            state: Between two updates.
            roles: Names of its links; with ``best_model`` it is the best of all so far.
            score: Of the evaluation just made, higher is better: the state may be among the k best.

        Raises:
            UserError: As `save`.
        """
        if not state.runtime.is_main:
            return
        try:
            folder = self._write(state, score)
            for role in roles:
                if role != BEST:
                    self._link(role, folder)
            self._link_best(folder, score, best=BEST in roles)
            self._remove_unnamed()
        except OSError as error:
            raise UserError(
                f"{self._folder}: can't write a checkpoint: {error.strerror or error}; "
                "the earlier ones are untouched"
            ) from error

    def find(self, wanted: str) -> Path | None:
        """Returns the checkpoint to resume from: ``wanted``, or with ``auto`` the newest that is whole.

        With ``auto`` damaged ones that may be newer are told in ``passed_over``; None means that the run
        has none at all.

        Raises:
            UserError: ``wanted`` is no checkpoint or is damaged, or with ``auto`` all are.
        """
        if wanted != "auto":
            return self._named_by_user(Path(wanted))
        self.passed_over = []
        for folder in self._newest_first():
            try:
                verify(folder)
            except DamagedError as error:
                self.passed_over.append(str(error))
            else:
                return self._nicest(folder)
        if self.passed_over:
            raise UserError("no checkpoint of this run is whole:\n  " + "\n  ".join(self.passed_over))
        if (self._output_dir / LATEST).is_symlink():
            raise UserError(f"{self._output_dir / LATEST}: not a checkpoint folder: it is gone")
        return None

    def last_good(self) -> Path | None:
        """Returns the newest checkpoint that is whole, for an error to name; None where there is none."""
        for folder in self._newest_first():
            try:
                verify(folder)
            except DamagedError:
                continue
            return self._nicest(folder)
        return None

    def refuse_existing(self, resumed: Path | None) -> None:
        """Refuses an output folder that holds another run than the one to go on with.

        Args:
            resumed: Checkpoint folder of the run to go on with; None for a new run.

        Raises:
            UserError: It does.
        """
        own = resumed is not None and self._folder.resolve() in resumed.resolve().parents
        if (self._output_dir / LATEST).is_symlink() and not own:
            raise UserError(
                f"{self._output_dir} already holds a run; go on with it by -o Global.checkpoints=auto, "
                "or choose another Global.output_dir"
            )

    def _named_by_user(self, path: Path) -> Path:
        if is_paddleclas(path):
            return path
        if not (path / MANIFEST).is_file():
            raise UserError(
                f"{path}: not a checkpoint folder (no {MANIFEST}); expected one such as output/latest, "
                "or the common name of PaddleClas's .pdparams, .pdopt and .pdstates"
            )
        verify(path)
        return path

    def _newest_first(self) -> list[Path]:
        """Returns all folders; those without a readable manifest first, for they may be the newest."""
        serials = {folder: _serial(folder) for folder in self._folder.glob("step_*")}
        return sorted(serials, key=lambda folder: (serials[folder] < 0, serials[folder]), reverse=True)

    def _nicest(self, folder: Path) -> Path:
        """Returns a link to a folder, if there is one: ``latest`` rather than ``epoch_3``."""
        named = sorted(
            link for link, target in self._links() if target == folder.resolve() and link.name != LATEST
        )
        latest = self._output_dir / LATEST
        return latest if latest.resolve() == folder.resolve() else (named or [folder])[0]

    def _links(self) -> Iterator[tuple[Path, Path]]:
        for link in self._output_dir.iterdir():
            if link.is_symlink():
                yield link, link.resolve()

    def _write(self, state: TrainState, score: float | None) -> Path:
        state.runtime.progress.tell("saving", patient=True)
        folder, copy = self._folder / f"step_{state.update:08d}", 1
        while folder.exists():
            copy += 1
            folder = folder.with_name(f"step_{state.update:08d}_{copy}")
        serial = 1 + max(map(_serial, self._folder.glob("step_*")), default=-1)
        with new_folder(folder, sync_each=True) as temporary:
            files = {}
            for name, data in take(state, self._config):
                state.runtime.progress.tell(f"saving {name}", patient=True)
                files[name] = put(temporary / name, data)
            manifest = Manifest(
                serial=serial,
                update=state.update,
                epoch=state.epoch,
                step=state.step,
                score=score,
                versions=_VERSIONS,
                files=files,
            )
            seal(temporary, manifest)
        return folder

    def _link(self, role: str, folder: Path) -> None:
        link = self._output_dir / role
        temporary = link.with_name(f".{role}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(folder, self._output_dir))
        temporary.replace(link)

    def _link_best(self, folder: Path, score: float | None, *, best: bool) -> None:
        """Puts a folder in its place among ``best_model``, ``best_model_2`` …, and those behind it one on."""
        names = [BEST, *(f"{BEST}_{place}" for place in range(2, self._config.Global.keep_best + 1))]
        place = 0 if best else len(names)
        if not best and score is not None:
            worse = (each for each in range(1, len(names)) if self._score(names[each]) < score)
            place = next(worse, len(names))
        for each in range(len(names) - 1, place, -1):
            before = self._output_dir / names[each - 1]
            if before.is_symlink():
                self._link(names[each], before.resolve())
        if place < len(names):
            self._link(names[place], folder)
        for link, _ in list(self._links()):
            if link.name.startswith(f"{BEST}_") and link.name not in names:
                link.unlink()  # keep_best was larger

    def _score(self, role: str) -> float:
        try:
            score = read_manifest(self._output_dir / role).score
        except DamagedError:
            score = None
        return -float("inf") if score is None else score

    def _remove_unnamed(self) -> None:
        named = {target for _, target in self._links()}
        for folder in self._folder.glob("step_*"):
            if folder.resolve() not in named:
                shutil.rmtree(folder)
        while self._left:
            shutil.rmtree(self._left.pop(), ignore_errors=True)


def _serial(folder: Path) -> int:
    """Returns a checkpoint's place among those of its run; -1 where its manifest can't be read."""
    try:
        return read_manifest(folder).serial
    except DamagedError:
        return -1
