"""Measuring processes that do well, refuse, crash, hang; as small scripts in the worker's place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from ppcls.bench.measure.children import Outcome, measure_apart, paddle_command
from ppcls.cli.command import command

_HEAD = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[-1])
task = json.loads((folder / "task.json").read_text())
def write(rank, **said): (folder / f"rank_{rank}.json").write_text(json.dumps(said))
"""


def run(code: str, timeout: float = 20.0, **environment: str | None) -> Outcome:
    return measure_apart([sys.executable, "-c", _HEAD + code], {"size": 3}, environment, timeout)


def test_what_is_found_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("GONE", "1")
    seen = "{k: os.environ.get(k) for k in ('PADDLE_TRAINERS_NUM', 'GONE', 'SET')}"
    outcome = run(
        f"write(0, found={{'task': task, 'seen': {seen}}}); write(1, found={{}})", GONE=None, SET="1"
    )
    seen_there = {"PADDLE_TRAINERS_NUM": None, "GONE": None, "SET": "1"}
    assert outcome == Outcome({"task": {"size": 3}, "seen": seen_there})


def test_the_first_refusal_is_the_reason() -> None:
    code = "write(1, reason='no room'); time.sleep(0.02); write(0, reason='the other is gone'); sys.exit(1)"
    assert run(code) == Outcome(None, "no room")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('it broke')", "ended with exit code 1: it broke"),
        ("os.kill(os.getpid(), 9)", "ended by SIGKILL; too little memory?: it said nothing"),
        ("print('half'); write(0, found={}); sys.exit(3)", "ended with exit code 3: half"),
        ("pass", "ended with exit code 0: it said nothing"),
    ],
)
def test_a_crash(code: str, reason: str) -> None:
    assert run(code).reason == reason


def test_the_log_of_a_crash_is_the_first_processs() -> None:
    code = "(folder / 'log').mkdir(); (folder / 'log' / 'workerlog.0').write_text('why\\n'); sys.exit('no')"
    outcome = run(code)
    assert outcome.reason == "ended with exit code 1: why"
    assert outcome.log == "why\n"


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    outcome = run(
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(60)", 1.0
    )
    assert outcome.reason == "not done after 1 s"
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_interrupt_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        started.append(process)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run("time.sleep(60)")
    assert started[0].poll() is not None


# Starts a process of a session of its own, as Paddle's launcher does, and waits; says both numbers.
_TREE = """
import subprocess
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)
pathlib.Path({said!r}).write_text(f'{{os.getpid()}} {{child.pid}}')
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_all_below(
    tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    said = tmp_path / "said"

    def send() -> None:
        while not said.exists() or len(said.read_text().split()) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    assert command(lambda _: run(_TREE.format(said=str(said))) and None)() == 128 + number
    assert capsys.readouterr().err == "interrupted\n"
    thread.join()
    for pid in map(int, said.read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_commands() -> None:
    assert paddle_command("train")[1:] == [paddle_command("train")[1], "train"]
    several = paddle_command("train", 2)
    assert several[1:3] == ["-m", "paddle.distributed.launch"]
    assert several[several.index("--nproc_per_node") + 1] == "2"
