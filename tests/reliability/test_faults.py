"""Every call to the file system fails once: a full disk, a failing drive, a write that is cut short."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from calls import CALLS
from run_checkpoints import checkpoints_of
from small_net import assert_equal, content, make_state, train_epochs
from test_damage import TREE, error_of

from ppcls import files
from ppcls.engine.checkpoint.checkpoints import BEST, LATEST
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.weights import manifest as manifest_module
from ppcls.weights.manifest import verify


class Faults:
    """Counts calls, and fails those that it is asked to."""

    def __init__(self, fatal: Callable[[int], bool], number: int) -> None:
        self._fatal, self._number = fatal, number
        self.calls = 0

    def wrap(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self._fatal(self.calls):
                raise OSError(self._number, os.strerror(self._number))
            return whole(*arguments, **options)

        return call


@contextmanager
def faults(fatal: Callable[[int], bool], number: int = errno.ENOSPC) -> Iterator[Faults]:
    made = Faults(fatal, number)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CALLS:
            patch.setattr(owner, name, made.wrap(getattr(owner, name)))
        yield made


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RETRY_DELAYS", (0.0, 0.0))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return validate(TREE, "small")


def with_fallback(folder: Path) -> Config:
    return validate({**TREE, "Global": {"checkpoint_fallback_dir": str(folder)}}, "small")


def two_states() -> tuple[TrainState, TrainState]:
    return train_epochs(make_state()), train_epochs(make_state(), 2)


def is_one_of(found: Path, *states: TrainState) -> None:
    again = make_state(seed=3)
    resume(again, found)
    assert_equal(content(again.model), content({state.update: state for state in states}[again.update].model))


@pytest.mark.slow  # test_writes.py lets all system calls of a save fail
def test_save_with_each_call_failing_on_a_full_disk_keeps_the_previous(
    tmp_path: Path, config: Config
) -> None:
    one, two = two_states()
    with faults(lambda _call: False) as counted:
        checkpoints_of(tmp_path / "count", config).save(one, [LATEST, BEST])
    assert counted.calls > 25
    for fatal in range(1, counted.calls + 12):  # the second save also removes the first one
        output = tmp_path / str(fatal)
        checkpoints = checkpoints_of(output, config)
        checkpoints.save(one, [LATEST, BEST])
        with faults(lambda call, fatal=fatal: call == fatal):  # type: ignore[misc]
            said = error_of(checkpoints.save, two, [LATEST, BEST])
        assert said is None or ("No space left" in said and "earlier checkpoints are unchanged" in said)
        found = checkpoints.find("auto")
        assert found is not None
        is_one_of(found, one, two)
        for role in (LATEST, BEST):
            verify(output / role)
        checkpoints.save(two, [LATEST, BEST])
        assert {path.name for path in output.iterdir()} == {"checkpoints", LATEST, BEST}
        assert len(list((output / "checkpoints").iterdir())) == 1
        shutil.rmtree(output)


def test_save_after_a_temporary_drive_failure_is_retried(tmp_path: Path, config: Config) -> None:
    one, two = two_states()
    checkpoints = checkpoints_of(tmp_path, config)
    checkpoints.save(one, [LATEST])
    for fatal in (1, 7, 20):
        with faults(lambda call, fatal=fatal: call == fatal, errno.EIO):  # type: ignore[misc]
            checkpoints.save(two, [LATEST])
        assert verify(tmp_path / LATEST).update == two.update
    with (
        faults(lambda call: call > 3, errno.EIO),
        pytest.raises(UserError, match="Input/output error; earlier checkpoints are unchanged"),
    ):
        checkpoints.save(two, [LATEST])


def test_silently_truncated_write_is_detected(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = two_states()
    checkpoints = checkpoints_of(tmp_path, config)
    checkpoints.save(one, [LATEST])
    whole = manifest_module.atomic_write

    class Short:
        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def write(self, data: bytes) -> int:
            self._file.write(data[:-1])
            return len(data)

    @contextmanager
    def short(path: Path) -> Iterator[Any]:
        with whole(path) as file:
            yield Short(file) if path.name == "model.safetensors" else file

    monkeypatch.setattr(manifest_module, "atomic_write", short)
    with pytest.raises(
        UserError, match=r"the disk returns data that differs from what was written: .*expected"
    ):
        checkpoints.save(two, [LATEST])
    assert verify(tmp_path / LATEST).update == one.update


def test_file_size_limit_of_the_system_is_a_user_error(tmp_path: Path, config: Config) -> None:
    """Files may not grow beyond a size: the write that would is cut short by the kernel, then refused."""
    one, two = two_states()
    checkpoints = checkpoints_of(tmp_path, config)
    checkpoints.save(one, [LATEST])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        with pytest.raises(UserError, match="can't write a checkpoint: File too large"):
            checkpoints.save(two, [LATEST])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert verify(tmp_path / LATEST).update == one.update
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_full_disk_saves_checkpoints_in_the_fallback_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    config, (one, two) = with_fallback(elsewhere), two_states()
    checkpoints = checkpoints_of(output, config)
    checkpoints.save(one, [LATEST, BEST])
    whole = Path.mkdir

    def full(self: Path, *arguments: Any, **options: Any) -> None:
        if output in self.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        checkpoints.save(two, [LATEST, "epoch_2"])
    said = capsys.readouterr().err
    assert f"{output}/checkpoints: can't write a checkpoint: No space left on device; written to " in said
    assert str(elsewhere) in said
    assert verify(output / LATEST).update == one.update
    found = checkpoints_of(output, config).find("auto")
    assert found is not None
    assert elsewhere in found.parents
    is_one_of(found, two)
    checkpoints.check_unused(found)
    checkpoints.save(train_epochs(make_state(), 3), [LATEST])  # there is room again
    assert checkpoints_of(output, config).find("auto") == output / LATEST
    with faults(lambda _call: True), pytest.raises(UserError, match=r"No space left.*; .*No space left"):
        checkpoints.save(two, [LATEST])


def test_read_only_folder_saves_checkpoints_in_the_fallback_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file: nothing can be written below it, not even by root")
    config = with_fallback(tmp_path / "elsewhere")
    one, _ = two_states()
    checkpoints_of(tmp_path / "run", config).save(one, [LATEST])
    (folder,) = (tmp_path / "elsewhere").iterdir()
    assert folder.name.startswith("run-")
    assert verify(folder / LATEST).update == one.update
