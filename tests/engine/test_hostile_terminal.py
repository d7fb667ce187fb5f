"""Runs whose terminal or launching shell does not cooperate."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import SUPPORT
from runs import GUARD

from ppcls.weights.manifest import verify

pytestmark = pytest.mark.hostile
SCRIPT = SUPPORT / "linear_run.py"
LONG = {"Arch__name": "Linear", "Global__epochs": 100_000, "Global__print_batch_step": 1}


def wait_for_lines(log: Path, count: int, process: subprocess.Popen[Any]) -> None:
    deadline = time.monotonic() + GUARD
    while not log.exists() or log.read_text().count("\n") < count:
        assert process.poll() is None
        assert time.monotonic() < deadline, "the run stands still"
        time.sleep(0.05)


@pytest.mark.parametrize("errors", [pytest.param("apart", marks=pytest.mark.slow), "together"])
def test_unread_output_does_not_stop_training(
    make_yaml: Callable[..., Path], tmp_path: Path, errors: str
) -> None:
    command = [sys.executable, str(SCRIPT), "-c", str(make_yaml("run", **LONG))]
    stderr = subprocess.STDOUT if errors == "together" else subprocess.DEVNULL
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(command, cwd=tmp_path, stdout=writer, stderr=stderr) as process:
        try:
            os.close(writer)
            wait_for_lines(tmp_path / "run" / "train.log", 80, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(GUARD) == 143
        finally:
            process.kill()
    verify(tmp_path / "run" / "latest")
    log = (tmp_path / "run" / "train.log").read_text()
    assert (
        "stopped by SIGTERM; resume with --resume (Global.checkpoints=auto); the state of the run is in "
        in log
    )
    assert os.read(reader, 4096).startswith(b"Paddle ")
    os.close(reader)


def test_nohup_in_the_background_saves_and_stops_on_sigterm(
    make_yaml: Callable[..., Path], tmp_path: Path
) -> None:
    command = ["nohup", sys.executable, str(SCRIPT), "-c", str(make_yaml("run", **LONG))]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell without job control does for commands that end with "&".
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        try:
            wait_for_lines(tmp_path / "run" / "train.log", 20, process)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGHUP)
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=GUARD)
        finally:
            process.kill()
    assert process.returncode == 143, errors
    verify(tmp_path / "run" / "latest")
    log = (tmp_path / "run" / "train.log").read_text()
    assert "Ctrl-C is ignored, because the shell started this process in the background" in log
    assert "stopped by SIGTERM" in log


def test_sighup_during_the_start_is_ignored_under_nohup() -> None:
    code = (
        "import os, signal; from ppcls.runtime.signals import interruptible\n"
        "with interruptible(): os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    )
    done = subprocess.run(
        ["nohup", sys.executable, "-c", code], capture_output=True, text=True, timeout=GUARD, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n")
