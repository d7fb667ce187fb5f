"""Processes below a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ppcls.bench.processes import alive, cpu_seconds, descendants, end

# Starts a process that starts one more; the last one says that it is there, and works.
_TREE = """
import subprocess, sys
depth = int(sys.argv[1])
child = depth and subprocess.Popen([sys.executable, "-c", sys.argv[2], str(depth - 1), sys.argv[2]])
if not depth:
    print("there", flush=True)
sum(range(3_000_000))
input()
"""


def _start(depth: int, ignore: bool = False) -> subprocess.Popen[bytes]:
    code = ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if ignore else "") + _TREE
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(depth), code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    return process


def test_all_below_are_found_counted_and_ended() -> None:
    process = _start(2)
    below = descendants(process.pid)
    assert len(below) == 2
    while cpu_seconds(process.pid) <= cpu_seconds(below[0]):
        time.sleep(0.01)
    assert cpu_seconds(process.pid) > 0
    end(process)
    assert not any(map(alive, [process.pid, *below]))


def test_one_that_does_not_want_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppcls.bench.processes._GRACE", 1.0)
    process = _start(1, ignore=True)
    below = descendants(process.pid)
    end(process)
    assert not any(map(alive, [process.pid, *below]))


def test_one_that_is_gone_has_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert descendants(process.pid) == []
    assert cpu_seconds(process.pid) == 0


def test_the_time_is_that_of_the_kernel() -> None:
    before, began = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() - began < 0.1:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.08
