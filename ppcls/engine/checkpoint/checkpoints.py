"""What a run keeps on disk: one folder a checkpoint, and links that say what each is.

``checkpoints/step_00000360`` is written whole under another name, read back, and then renamed; ``latest``,
``best_model`` and ``epoch_N`` are links to such folders, each replaced in one rename. A folder that no
link names is removed, after the newer one is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import paddle

from ppcls import __version__
from ppcls.config.schema import Config
from ppcls.data.index.class_names import LABEL_LIST, format_label_list
from ppcls.engine.checkpoint.paddleclas import is_paddleclas
from ppcls.engine.checkpoint.snapshot import take
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.files import retry_io
from ppcls.weights.manifest import MANIFEST, DamagedError, Manifest, verify
from ppcls.weights.store import BEST, LATEST, Store, places

__all__ = ["BEST", "LATEST", "Checkpoints"]

_VERSIONS = {"ppcls": __version__, "paddle": paddle.__version__}


class Checkpoints:
    """The checkpoints of one output folder, and of the place that takes over where it fails.

    Args:
        output_dir: Folder of the run.
        config: Written into each checkpoint; says how many of the best to keep, and the other place.

    Attributes:
        passed_over: What is wrong with damaged checkpoints that `find` did not take.
        class_names: By label, where they are known; written into each checkpoint, for inference.
    """

    def __init__(self, output_dir: Path, config: Config) -> None:
        self._config = config
        self._stores = [Store(root) for root in places(output_dir, config.Global.checkpoint_fallback_dir)]
        self._store = self._stores[0]
        self.passed_over: list[str] = []
        self.class_names: tuple[str, ...] = ()

    def save(self, state: TrainState, roles: Iterable[str], score: float | None = None) -> None:
        """Writes the state as `save_alone` does, while the other ranks wait for rank 0.

        Raises:
            UserError: It can't be written, or the model is not finite any more; all earlier
                checkpoints are as they were.
        """
        self.save_alone(state, roles, score)
        if state.runtime.world_size > 1:
            state.runtime.progress.report("waiting for all processes after a checkpoint", slow=True)
            paddle.distributed.barrier()

    def save_alone(self, state: TrainState, roles: Iterable[str], score: float | None = None) -> None:
        """Writes the state on rank 0, and nothing on others; waits for none.

        Where the output folder does not take it, not after some seconds either, it goes to the other
        place, and standard error says so.

        Args:
            state: Between two updates.
            roles: Names of its links; with ``best_model`` it is the best of all so far.
            score: Of the evaluation just made, higher is better: the state may be among the k best.

        Raises:
            UserError: As `save`.
        """
        if not state.runtime.is_main:
            return
        roles, failed = list(roles), list[str]()
        for store in self._stores:
            try:
                folder = retry_io(lambda store=store: self._save_in(store, state, roles, score))  # type: ignore[misc]
            except OSError as error:
                failed.append(f"{store.folder}: can't write a checkpoint: {error.strerror or error}")
            else:
                if failed:
                    print(f"{'; '.join(failed)}; written as {folder}", file=sys.stderr)  # noqa: T201
                return
        hint = "" if len(self._stores) > 1 else ". Global.checkpoint_fallback_dir names a place for this case"
        raise UserError(f"{'; '.join(failed)}; the earlier ones are untouched{hint}")

    def find(self, wanted: str) -> Path | None:
        """Returns the checkpoint to resume from: ``wanted``, or with ``auto`` the newest that is whole.

        With ``auto`` damaged ones that may be newer are told in ``passed_over``; None means that the run
        has none at all.

        Raises:
            UserError: ``wanted`` is no checkpoint or is damaged, or with ``auto`` all are.
        """
        if wanted != "auto":
            return _named_by_user(Path(wanted))
        self.passed_over = []
        for folder, store in self._newest_first():
            try:
                verify(folder)
            except DamagedError as error:
                self.passed_over.append(str(error))
            else:
                return store.nicest(folder)
        if self.passed_over:
            raise UserError("no checkpoint of this run is whole:\n  " + "\n  ".join(self.passed_over))
        latest = self._store.root / LATEST
        if latest.is_symlink():
            raise UserError(f"{latest}: not a checkpoint folder: it is gone")
        return None

    def last_good(self) -> Path | None:
        """Returns the newest checkpoint that is whole, for an error to name; None where there is none."""
        for folder, store in self._newest_first():
            try:
                verify(folder)
            except DamagedError:
                continue
            return store.nicest(folder)
        return None

    def has_best(self) -> bool:
        """Whether this run has a best model, here or in the other place."""
        return any((store.root / BEST).is_symlink() for store in self._stores)

    def refuse_existing(self, resumed: Path | None) -> None:
        """Refuses an output folder that holds another run than the one to go on with.

        Args:
            resumed: Checkpoint folder of the run to go on with; None for a new run.

        Raises:
            UserError: It does.
        """
        above = [] if resumed is None else resumed.resolve().parents
        own = any(store.folder.resolve() in above for store in self._stores)
        if (self._store.root / LATEST).is_symlink() and not own:
            raise UserError(
                f"{self._store.root} already holds a run; go on with it by -o Global.checkpoints=auto, "
                "or choose another Global.output_dir"
            )

    def _newest_first(self) -> list[tuple[Path, Store]]:
        """Returns all checkpoints; those without a readable manifest first, for they may be the newest."""
        found = [
            (serial, folder, store) for store in self._stores for folder, serial in store.folders().items()
        ]
        found.sort(key=lambda each: (each[0] < 0, each[0]), reverse=True)
        return [(folder, store) for _, folder, store in found]

    def _files(self, state: TrainState) -> Iterator[tuple[str, bytes]]:
        yield from take(state, self._config)
        if self.class_names:
            yield LABEL_LIST, format_label_list(self.class_names).encode()

    def _save_in(self, store: Store, state: TrainState, roles: list[str], score: float | None) -> Path:
        serials = [serial for each in self._stores for serial in each.folders().values()]
        manifest = Manifest(
            serial=1 + max(serials, default=-1),
            update=state.update,
            epoch=state.epoch,
            step=state.step,
            score=score,
            judge=state.judge,
            versions=_VERSIONS,
            files={},
        )
        folder = store.write(_told(state, self._files(state)), manifest)
        for role in roles:
            if role != BEST:
                store.link(role, folder)
        store.link_best(folder, manifest, self._config.Global.keep_best, best=BEST in roles)
        store.remove_unnamed()
        return folder


def _told(state: TrainState, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yields the files of a state, and tells each of them before it is written."""
    state.runtime.progress.report("saving", slow=True)
    for name, data in files:
        state.runtime.progress.report(f"saving {name}", slow=True)
        yield name, data


def _named_by_user(path: Path) -> Path:
    if is_paddleclas(path):
        return path
    if not (path / MANIFEST).is_file():
        raise UserError(
            f"{path}: not a checkpoint folder (no {MANIFEST}); expected one such as output/latest, "
            "or the common name of PaddleClas's .pdparams, .pdopt and .pdstates"
        )
    verify(path)
    return path
