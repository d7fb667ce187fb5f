"""SIGTERM and SIGHUP as Ctrl-C, in the process that asked for it alone."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from ppcls.errors import Interrupted
from ppcls.interruptible import interruptible

BOTH = (signal.SIGTERM, signal.SIGHUP)


def _signal_oneself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_interrupts_the_block(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in BOTH]
    with pytest.raises(Interrupted) as caught, interruptible():
        os.kill(os.getpid(), number)
    assert caught.value.code == 128 + number
    assert [signal.getsignal(each) for each in BOTH] == before


def test_a_forked_process_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    with interruptible():
        worker = multiprocessing.get_context("fork").Process(target=_signal_oneself)
        worker.start()
        worker.join()
    # The latter where the process has trained before: its forks leave signals to it (`engine.interrupt`).
    assert worker.exitcode in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert capfd.readouterr().err == ""
