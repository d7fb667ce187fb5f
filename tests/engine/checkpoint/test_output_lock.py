"""Two runs never write into one output folder, and dead runs block nobody."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppcls.engine.checkpoint.output_lock import LOCK, OutputLock
from ppcls.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from ppcls.engine.checkpoint.output_lock import OutputLock
lock = OutputLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(1000)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """Starts another run, and waits until it holds the lock."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    return other


def test_lock_held_by_another_run_names_it(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        with pytest.raises(UserError) as caught:
            OutputLock(tmp_path, timeout=0.0)
        other.kill()
    assert str(caught.value).startswith(f"{tmp_path}: another run is writing here (process {other.pid} on ")
    assert "set another Global.output_dir" in str(caught.value)


def test_lock_on_full_disk_names_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        OutputLock(tmp_path, timeout=0.0)
    assert caught.value.filename == str(tmp_path / LOCK)


def test_lock_of_killed_run_is_free(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK).exists()
    OutputLock(tmp_path, timeout=0.0).release()


def test_lock_waits_for_ending_run(tmp_path: Path) -> None:
    with hold(tmp_path) as other:
        ending = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {other.pid}"])
        OutputLock(tmp_path, timeout=60.0).release()
        ending.wait(60)


def test_lock_released_is_free(tmp_path: Path) -> None:
    lock = OutputLock(tmp_path, timeout=0.0)
    assert lock.note == ""
    lock.release()
    lock.release()
    with hold(tmp_path) as other:
        other.kill()


def test_lock_is_not_inherited_by_forked_workers(tmp_path: Path) -> None:
    lock = OutputLock(tmp_path, timeout=0.0)
    worker = multiprocessing.get_context("fork").Process(target=signal.pause)
    worker.start()
    lock.release()
    try:
        with hold(tmp_path) as other:
            other.kill()
    finally:
        worker.kill()
        worker.join()


def test_lock_without_file_system_support_adds_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", unsupported)
    assert "this file system does not support locks" in OutputLock(tmp_path).note
