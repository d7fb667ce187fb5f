"""Measuring processes that answer, refuse, crash or hang, as small scripts instead of the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ppcls.cli.command import exit_code
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess, worker_command

_HEAD = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[-1])
task = json.loads((folder / "task.json").read_text())
def write(rank, **answer): (folder / f"rank_{rank}.json").write_text(json.dumps(answer))
"""


def run(code: str, timeout: float = 20.0, **environment: str | None) -> dict[str, Any]:
    return MeasuringProcess([sys.executable, "-c", _HEAD + code], {"size": 3}, timeout, environment).run()


def failure(code: str, timeout: float = 20.0) -> MeasurementFailed:
    with pytest.raises(MeasurementFailed) as raised:
        run(code, timeout)
    return raised.value


def test_run_returns_the_sample_of_rank_0_and_sets_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("GONE", "1")
    seen = "{k: os.environ.get(k) for k in ('PADDLE_TRAINERS_NUM', 'GONE', 'SET')}"
    sample = run(
        f"write(0, found={{'task': task, 'seen': {seen}}}); write(1, found={{}})", GONE=None, SET="1"
    )
    assert sample == {
        "task": {"size": 3},
        "seen": {"PADDLE_TRAINERS_NUM": None, "GONE": None, "SET": "1"},
    }


def test_run_two_reasons_reports_the_first() -> None:
    code = "write(1, reason='no room'); time.sleep(0.02); write(0, reason='peer is gone'); sys.exit(1)"
    assert failure(code).reason == "no room"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('it broke')", "exit code 1: it broke"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL (out of memory?): no output"),
        ("print('half'); write(0, found={}); sys.exit(3)", "exit code 3: half"),
        ("pass", "exit code 0: no output"),
    ],
)
def test_run_crash_reports_exit_and_last_line(code: str, reason: str) -> None:
    assert failure(code).reason == reason


def test_run_command_that_cannot_be_started_has_a_reason() -> None:
    with pytest.raises(MeasurementFailed, match="/no/such/python: cannot be started: No such file"):
        MeasuringProcess(["/no/such/python"], {}, 20.0).run()


def test_run_crash_under_launcher_shows_the_log_of_rank_0() -> None:
    code = "(folder / 'log').mkdir(); (folder / 'log' / 'workerlog.0').write_text('why\\n'); sys.exit('no')"
    error = failure(code)
    assert error.reason == "exit code 1: why"
    assert str(error) == "exit code 1: why\nwhy"


def test_run_timeout_ends_the_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    error = failure(f"pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(60)", 1.0)
    assert error.reason == "not finished after 1 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_run_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        started.append(process)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run("time.sleep(60)")
    assert started[0].poll() is not None


# Starts a process in a session of its own, as Paddle's launcher does, and waits; writes both process ids.
_TREE = """
import subprocess
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)
pathlib.Path({pids!r}).write_text(f'{{os.getpid()}} {{child.pid}}')
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_run_signal_ends_all_descendants(
    tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = tmp_path / "pids"

    def send() -> None:
        while not pids.exists() or len(pids.read_text().split()) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    assert exit_code(lambda: run(_TREE.format(pids=str(pids))) and None) == 128 + number
    assert capsys.readouterr().err == "interrupted\n"
    thread.join()
    for pid in map(int, pids.read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_worker_command_several_processes_uses_the_launcher() -> None:
    assert worker_command(Path("worker.py"), "train")[1:] == ["worker.py", "train"]
    several = worker_command(Path("worker.py"), "train", processes=2)
    assert several[1:3] == ["-m", "paddle.distributed.launch"]
    assert several[several.index("--nproc_per_node") + 1] == "2"
