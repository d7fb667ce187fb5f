"""SIGTERM and SIGHUP as Ctrl-C, in the process that asked for it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from paths import ROOT

from ppcls.errors import SignalInterrupt
from ppcls.runtime.signals import interruptible

BOTH = (signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_interrupts_the_block(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in BOTH]
    with pytest.raises(SignalInterrupt) as caught, interruptible():
        os.kill(os.getpid(), number)
    assert caught.value.code == 128 + number
    assert [signal.getsignal(each) for each in BOTH] == before


def test_a_forked_process_ends_without_a_word() -> None:
    """In a process of its own, for one that has trained leaves its forks' signals to the system."""
    code = """
import multiprocessing, os, signal
from ppcls.runtime.signals import interruptible

with interruptible():
    worker = multiprocessing.get_context("fork").Process(target=lambda: os.kill(os.getpid(), signal.SIGTERM))
    worker.start()
    worker.join()
print(worker.exitcode)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert int(done.stdout) == 128 + signal.SIGTERM
    assert done.stderr == ""
