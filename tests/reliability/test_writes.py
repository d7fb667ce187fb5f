"""Every write of a save fails in every way: at once, halfway, cut short without a word, by a limit."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from figures import Figure
from run_checkpoints import checkpoints_of
from runs import begin, end, said
from test_damage import TREE, error_of
from test_faults import faults, is_one_of, two_states

from ppcls import files
from ppcls.engine.checkpoint.checkpoints import BEST, LATEST
from ppcls.engine.core.state import TrainState
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.weights.manifest import verify


class Failing:
    """Has files fail at one of their writes; all others pass.

    Args:
        fatal: Which write, from 1; 0 for none.
        how: ``"full"`` and ``"broken"`` fail at once, and ``"half"`` when a half is written, with words;
            ``"short"`` writes a half without a word, ``"nothing"`` none of it.
    """

    def __init__(self, fatal: int, how: str) -> None:
        self._fatal, self._how = fatal, how
        self.writes = 0
        self.ends: dict[Path, list[int]] = {}  # the first and the last write of each file

    def open(self, whole: Callable[..., Any], path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = whole(path, mode, *rest, **more)
        if "r" not in mode:
            write = file.write
            file = _Writing(file, lambda data: self._write(path, write, data))
        return file

    def _write(self, path: Path, write: Callable[[bytes], int], data: bytes) -> int:
        self.writes += 1
        first = self.ends.get(path, [self.writes])[0]
        self.ends[path] = [first, self.writes]
        if self.writes != self._fatal:
            return write(data)
        if self._how in ("half", "short"):
            write(data[: len(data) // 2])
        match self._how:
            case "full" | "half":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "broken":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return len(data)


class _Writing:
    """A file whose writes go through a function."""

    def __init__(self, file: io.BufferedIOBase, write: Callable[[bytes], int]) -> None:
        self._file, self.write = file, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


@contextmanager
def failing(fatal: int, how: str) -> Iterator[Failing]:
    made, whole = Failing(fatal, how), Path.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda *arguments, **more: made.open(whole, *arguments, **more))
        yield made


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RETRY_DELAYS", ())


@pytest.fixture
def config() -> Config:
    return validate(TREE, "small")


def assert_nothing_lost(output: Path, config: Config, states: tuple[TrainState, TrainState]) -> None:
    """Holds the run's checkpoints to be whole, each of the one state or the other."""
    found = checkpoints_of(output, config).find("auto")
    assert found is not None
    is_one_of(found, *states)
    for role in (LATEST, BEST):
        verify(output / role)


def test_save_with_any_failing_write_keeps_the_previous(
    tmp_path: Path, config: Config, figure: Figure
) -> None:
    states = one, two = two_states()
    with failing(0, "full") as counted:
        checkpoints_of(tmp_path / "count", config).save(one, [LATEST, BEST])
    assert len(counted.ends) == 5, "model, optimizer, config, state, manifest"
    places = sorted({place for ends in counted.ends.values() for place in ends})
    ways = ("full", "broken", "half", "short", "nothing")
    for how in ways:
        for fatal in places:
            output = tmp_path / f"{how}{fatal}"
            checkpoints = checkpoints_of(output, config)
            checkpoints.save(one, [LATEST, BEST])
            with failing(fatal, how):
                said = error_of(checkpoints.save, two, [LATEST, BEST])
            assert said is not None
            assert "earlier checkpoints are unchanged" in said
            assert_nothing_lost(output, config, states)
            assert verify(output / LATEST).update == one.update
            assert len(list((output / "checkpoints").iterdir())) == 1, "nothing of it is left"
            checkpoints.save(two, [LATEST, BEST])
            assert verify(output / LATEST).update == two.update
    figure(
        f"the first and last write of each file of a save, failed in {len(ways)} ways (ENOSPC or EIO at "
        "once, ENOSPC halfway, half or nothing written without a word): each noticed, nothing lost"
    )


@pytest.mark.parametrize(
    "number",
    [errno.EIO, *(pytest.param(each, marks=pytest.mark.reliability) for each in (errno.EROFS, errno.EDQUOT))],
    ids=errno.errorcode.__getitem__,
)
def test_save_with_any_failing_system_call_keeps_the_previous(
    tmp_path: Path, config: Config, figure: Figure, number: int
) -> None:
    """ENOSPC is in test_faults; here a drive that does not come back, one gone read-only, a quota."""
    states = one, two = two_states()
    with faults(lambda _call: False) as counted:
        checkpoints_of(tmp_path / "count", config).save(one, [LATEST, BEST])
    lost = 0
    calls = range(1, counted.calls + 12)  # the second save also removes the first one
    for fatal in calls:
        output = tmp_path / str(fatal)
        checkpoints = checkpoints_of(output, config)
        checkpoints.save(one, [LATEST, BEST])
        with faults(lambda call, fatal=fatal: call >= fatal, number):  # type: ignore[misc]
            said = error_of(checkpoints.save, two, [LATEST, BEST])
        assert said is None or (os.strerror(number) in said and "earlier checkpoints are unchanged" in said)
        lost += said is not None
        assert_nothing_lost(output, config, states)
        checkpoints.save(two, [LATEST, BEST])
        assert {path.name for path in output.iterdir()} == {"checkpoints", LATEST, BEST}
        shutil.rmtree(output)
    figure(
        f"{errno.errorcode[number]} from each of a save's {len(calls)} calls to the file system on: {lost} "
        "saves failed in words; every earlier checkpoint whole"
    )


def test_save_at_any_file_size_limit_keeps_the_previous(
    tmp_path: Path, config: Config, figure: Figure
) -> None:
    """The kernel cuts the write that goes beyond, as a full disk does, and refuses the next."""
    states = one, two = two_states()
    checkpoints = checkpoints_of(tmp_path, config)
    checkpoints.save(one, [LATEST, BEST])
    sizes = {file.stat().st_size for file in (tmp_path / LATEST).resolve().iterdir()}
    limits = sorted({max(0, size + by) for size in sizes for by in (-1, 0)} | set(range(0, max(sizes), 173)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    failed = 0
    try:
        for limit in limits:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            said = error_of(checkpoints.save, two, [LATEST])
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert (said is None) == (limit >= max(sizes)), "both states are of one size"
            failed += said is not None
            if said is not None:
                assert "can't write a checkpoint: File too large" in said
                assert_nothing_lost(tmp_path, config, states)
                assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    figure(f"writes cut by the kernel at {len(limits)} sizes: {failed} saves failed in words, nothing lost")


@pytest.mark.reliability
@pytest.mark.parametrize("kib", [1, 2, 3, 12])
def test_run_at_a_file_size_limit_fails_without_damage(
    make_yaml: Callable[..., Path], tmp_path: Path, kib: int
) -> None:
    """Any file of a run may be the one that does not fit: log, records, config, checkpoint."""
    notes, config = tmp_path / "notes", make_yaml("run", Arch__name="Linear")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    notes.mkdir()
    run = begin("limited_run.py", config, notes, f"LIMIT={kib * 1024}")
    assert end(run) == 2, said(notes)
    text = (notes / "said").read_text()
    assert "Traceback" not in text
    assert "error: " in text.splitlines()[-1]
    assert "File too large" in text.splitlines()[-1]
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
    again = tmp_path / "again"
    assert end(begin("noting_run.py", config, again, "Global.checkpoints=auto")) == 0, said(again)
