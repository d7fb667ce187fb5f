"""Saves and finds the checkpoints of a run, and protects the checkpoints of other runs.

A thread writes a checkpoint such as ``checkpoints/step_00000360`` under a temporary name, reads it back, and
then renames it, while the next steps train. ``latest``, ``best_model`` and ``epoch_N`` are links to such
folders. Each link is replaced atomically. A folder without links is removed when a newer checkpoint exists.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import paddle

from ppcls.data.index.class_names import LABEL_LIST, format_label_list
from ppcls.engine.checkpoint.output_folder import OutputFolder
from ppcls.engine.checkpoint.paddleclas import is_paddleclas
from ppcls.engine.checkpoint.snapshot import Content, snapshot_files
from ppcls.engine.core.settings import CheckpointSettings
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.files import print_error, real_path, retry_io
from ppcls.runtime.host_memory import HostMemory
from ppcls.version import __version__
from ppcls.weights.files import pack_arrays
from ppcls.weights.manifest import MANIFEST, DamagedError, Manifest, verify
from ppcls.weights.store import BEST, LATEST, Store, checkpoint_roots

__all__ = ["BEST", "LATEST", "Checkpoints"]

_REMOVAL_SECONDS = 2.0
_NICENESS = 10  # of the thread that writes; about a tenth of a core if all cores are busy
_KEPT_MEMORY = 1 << 30  # bytes of copies of the weights that are kept for the next checkpoint
_VERSIONS = {"ppcls": __version__, "paddle": paddle.__version__}


class Checkpoints:
    """The checkpoints in the output folder of a run, and in its fallback folder.

    The fallback folder is used while the output folder can't be written.

    Args:
        settings: Number of best models to keep, and the fallback folder.
        config: Config of the run as YAML text, to save with each checkpoint.

    Attributes:
        damaged: Problems of the damaged checkpoints that `find` skipped.
        restored: Lines for the log about links that `restore_links` created again.
        class_names: Class names in order of label, to save with each checkpoint; empty if unknown.
        output: Output folder, on rank 0; None if the run writes no files.
        after_write: Function to call after each checkpoint, in the thread that wrote it; None for none.
    """

    def __init__(self, output_dir: Path, settings: CheckpointSettings, config: str) -> None:
        self._settings = settings
        self._config = config
        roots = checkpoint_roots(output_dir, settings.checkpoint_fallback_dir)
        self._stores = [Store(root) for root in roots]
        self.damaged: list[str] = []
        self.restored: list[str] = []
        self.class_names: tuple[str, ...] = ()
        self.output: OutputFolder | None = None
        self.after_write: Callable[[], None] | None = None
        self._memory: defaultdict[str, HostMemory] = defaultdict(HostMemory)  # for each file
        self._writing: tuple[ThreadPoolExecutor, Future[None]] | None = None

    @property
    def root(self) -> Path:
        """The output folder, at its current path."""
        return self._stores[0].root

    def save(
        self,
        state: TrainState,
        roles: Iterable[str],
        score: float | None = None,
        *,
        in_background: bool = False,
        alone: bool = False,
    ) -> None:
        """Saves the state on rank 0, while the other ranks wait.

        If writing to the output folder fails repeatedly for some seconds, the checkpoint is written to the
        fallback folder, and a line is printed on standard error.

        Args:
            state: State between two updates.
            roles: Names of the links to create for the checkpoint. ``best_model`` marks the best one so far.
            score: Score of the evaluation before this checkpoint, higher is better; None without an
                evaluation.
            in_background: Whether to return when the state is copied to host memory. A thread then writes the
                files, and `wait` or the next `save` raises its errors.
            alone: Whether rank 0 saves without waiting for other ranks, because they may have failed.

        Raises:
            UserError: This checkpoint or the previous one in the background can't be written, or weights
                are NaN or infinite. Earlier checkpoints are unchanged.
        """
        if state.runtime.is_main:
            self._save(state, list(roles), score, in_background)
        if state.runtime.world_size > 1 and not alone:
            state.runtime.progress.report("waiting for all processes after a checkpoint", slow=True)
            paddle.distributed.barrier()

    def _save(self, state: TrainState, roles: list[str], score: float | None, in_background: bool) -> None:
        state.runtime.progress.report("waiting for the previous checkpoint", slow=True)
        self.wait()
        content = list(self._files(state))
        manifest = Manifest(
            serial=0,
            update=state.update,
            epoch=state.epoch,
            step=state.step,
            score=score,
            judge=state.judge,
            versions=_VERSIONS,
            files={},
        )
        write = partial(self._write, content, manifest, roles)
        if in_background:
            thread = ThreadPoolExecutor(1, "checkpoint", initializer=_let_others_run)
            self._writing = thread, thread.submit(write)
        else:
            write()

    def wait(self) -> None:
        """Waits for the checkpoint that a thread is writing.

        Raises:
            UserError: The checkpoint can't be written.
        """
        if self._writing is None:
            return
        (thread, written), self._writing = self._writing, None
        thread.shutdown()
        written.result()

    @contextmanager
    def finished(self) -> Iterator[None]:
        """Returns a context that, when it ends, waits for the checkpoint that a thread is writing.

        If the block raises an error, an error of the checkpoint is only printed.

        Raises:
            UserError: The checkpoint can't be written.
        """
        failed = True
        try:
            yield
            failed = False
        finally:
            try:
                self.wait()
            except UserError as error:
                if not failed:
                    raise
                print_error(str(error))

    def _write(self, content: list[tuple[str, Content]], manifest: Manifest, roles: list[str]) -> None:
        try:
            self._try_stores(content, manifest, roles)
            if self.after_write is not None:
                self.after_write()
        finally:
            if sum(memory.size for memory in self._memory.values()) > _KEPT_MEMORY:
                self._memory.clear()  # until the next checkpoint, which then takes longer

    def _try_stores(self, content: list[tuple[str, Content]], manifest: Manifest, roles: list[str]) -> None:
        self._follow_output()
        failed = list[str]()
        for store in self._stores:
            try:
                folder = retry_io(lambda store=store: self._write_to(store, content, manifest, roles))  # type: ignore[misc]
            except OSError as error:
                # An error without a number: a file had vanished when the checkpoint was read back.
                is_vanishing = error.errno in (None, errno.ENOENT)
                if self._follow_output(is_vanishing=is_vanishing):
                    self._try_stores(content, manifest, roles)
                    return
                failed.append(f"{store.folder}: can't write a checkpoint: {error.strerror or error}")
            else:
                if failed:
                    print_error(f"{'; '.join(failed)}; written to {folder} instead")
                return
        hint = (
            "" if len(self._stores) > 1 else ". Set Global.checkpoint_fallback_dir to a folder for this case"
        )
        raise UserError(f"{'; '.join(failed)}; earlier checkpoints are unchanged{hint}")

    def _follow_output(self, *, is_vanishing: bool = False) -> bool:
        """Uses the current path of the output folder from now on, and returns whether it has changed.

        Args:
            is_vanishing: Whether a file in the folder has disappeared. Another program is then removing the
                folder, so this function waits until the folder itself is removed, for at most two seconds.
        """
        if self.output is None:
            return False
        deadline = time.monotonic() + (_REMOVAL_SECONDS if is_vanishing else 0.0)
        while (current := self.output.current()) == self.root:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        self._stores[0] = Store(current)
        return True

    def restore_links(self) -> None:
        """Creates the links of this run again after a copy that lost them, see `Store.restore_links`.

        Raises:
            UserError: The output folder can't be written.
        """
        try:
            self.restored = [line for store in self._stores for line in store.restore_links()]
        except OSError as error:
            raise UserError(
                f"{error.filename or self.root}: can't restore the links of this run: {error.strerror}"
            ) from None

    def find(self, requested: str) -> Path | None:
        """Returns the checkpoint to resume from.

        Args:
            requested: Path of a checkpoint, or ``auto`` for the newest intact checkpoint of this run. With
                ``auto``, `damaged` lists the damaged checkpoints that were skipped.

        Returns:
            The checkpoint. With ``auto``, None if the run has no checkpoint.

        Raises:
            UserError: ``requested`` is not a checkpoint or is damaged; or, with ``auto``, all checkpoints are
                damaged.
        """
        if requested != "auto":
            return _check_named(Path(requested))
        if checkpoint := self.newest_intact():
            return checkpoint
        if self.damaged:
            raise UserError(
                "all checkpoints of this run are damaged; restore one from a backup, or start a new run in "
                "another Global.output_dir:\n  " + "\n  ".join(self.damaged)
            )
        latest = self.root / LATEST
        if latest.is_symlink():
            raise UserError(
                f"{latest}: not a checkpoint folder: the target of this link is missing; set "
                "Global.checkpoints to another checkpoint"
            )
        return None

    def newest_intact(self) -> Path | None:
        """Returns the newest undamaged checkpoint or None, and stores problems of newer ones in `damaged`."""
        self.wait()
        self.damaged = []
        for folder, store in self._newest_first():
            try:
                verify(folder)
            except DamagedError as error:
                self.damaged.append(str(error))
            else:
                return store.preferred_name(folder)
        return None

    def has_best(self) -> bool:
        """Returns whether this run has a best model."""
        return any((store.root / BEST).is_symlink() for store in self._stores)

    def best_score(self, judge: str) -> float:
        """Returns the score of this run's best model; -inf if it has none, and inf if the score is unknown.

        Args:
            judge: Name of the metric of the score.
        """
        return max(store.best_score(judge) for store in self._stores)

    def check_unused(self, resumed: Path | None) -> None:
        """Checks that the output folder contains no other run, and nothing else in the places of its links.

        Args:
            resumed: Checkpoint that the run resumes from; None for a new run.

        Raises:
            UserError: The folder contains another run, or see `Store.check_places`.
        """
        if len(self._stores) == 1:  # otherwise the fallback folder is used
            self._stores[0].check_places()
        parents = [] if resumed is None else real_path(resumed).parents
        same_run = any(real_path(store.folder) in parents for store in self._stores)
        if self._stores[0].holds_run() and not same_run:
            raise UserError(
                f"{self.root} already holds a run; resume it with --resume (Global.checkpoints=auto), or "
                "choose another folder with --output (Global.output_dir)"
            )

    def _newest_first(self) -> list[tuple[Path, Store]]:
        """Returns all checkpoints, newest first, with their stores.

        Checkpoints without a readable manifest come first, because they may be the newest.
        """
        entries = [
            (serial, folder, store) for store in self._stores for folder, serial in store.folders().items()
        ]
        entries.sort(key=lambda entry: (entry[0] < 0, entry[0]), reverse=True)
        return [(folder, store) for _, folder, store in entries]

    def _files(self, state: TrainState) -> Iterator[tuple[str, Content]]:
        """Yields the name and content of each file of a checkpoint, and reports the progress."""
        progress = state.runtime.progress
        progress.report("saving", slow=True)
        for name, data in snapshot_files(state, self._config, self._memory):
            progress.report(f"saving {name}", slow=True)
            yield name, data
        if self.class_names:
            progress.report(f"saving {LABEL_LIST}", slow=True)
            yield LABEL_LIST, format_label_list(self.class_names).encode()

    def _write_to(
        self, store: Store, content: list[tuple[str, Content]], manifest: Manifest, roles: list[str]
    ) -> Path:
        serials = [serial for store in self._stores for serial in store.folders().values()]
        manifest = manifest.model_copy(update={"serial": 1 + max(serials, default=-1)})
        files = ((name, [data] if isinstance(data, bytes) else pack_arrays(data)) for name, data in content)
        folder = store.write(files, manifest)
        for role in roles:
            if role != BEST:
                store.link(role, folder)
        store.link_best(folder, manifest, self._settings.keep_best, best=BEST in roles)
        store.remove_unlinked()
        return folder


def _let_others_run() -> None:
    """Lowers the priority of this thread, so that training gets the cores first."""
    with suppress(OSError):  # a security policy may forbid it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _check_named(path: Path) -> Path:
    if is_paddleclas(path):
        return path
    if not (path / MANIFEST).is_file():
        raise UserError(
            f"{path}: not a checkpoint folder (no {MANIFEST}); expected one such as output/latest, "
            "or the common prefix of PaddleClas's .pdparams, .pdopt and .pdstates files"
        )
    verify(path)
    return path
