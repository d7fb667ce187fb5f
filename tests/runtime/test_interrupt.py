"""Signals are heard at once, wherever the main thread is, and change nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ppcls.errors import SignalExit
from ppcls.runtime import signals as interrupt
from ppcls.runtime.signals import Signals, heard

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in NUMBERS]
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_one_is_remembered_and_raises_nothing(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with heard() as signals:
        assert signals.stop == 0
        os.kill(os.getpid(), number)
        until(lambda: signals.stop)
        assert signals.stop == number
        os.kill(os.getpid(), signal.SIGTERM)  # at once after it: means the same
        os.kill(os.getpid(), signal.SIGUSR1)
        until(signals.take_save)
        assert signals.stop == number
    assert f"{signal.Signals(number).name}: saves after this update and ends" in capfd.readouterr().err


def test_usr1_asks_once() -> None:
    with heard() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        until(signals.take_save)
        assert not signals.take_save()
        assert signals.stop == 0


class _Ends:
    """Ctrl-C comes while it is tidied up."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("error")
def test_one_in_a_finalizer_is_heard() -> None:
    """There Python would print a KeyboardInterrupt, and forget it."""
    with heard() as signals:
        _Ends()
        until(lambda: signals.stop)


def test_a_second_one_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(interrupt.os, "_exit", codes.append)
    signals = Signals(again=0.0)
    signals.hear(signal.SIGINT)
    signals.hear(signal.SIGTERM)
    assert codes == [143]
    patient = Signals(again=60.0)
    patient.hear(signal.SIGTERM)
    patient.hear(signal.SIGTERM)
    assert codes == [143]


STUCK = """
import ctypes, os, signal, sys
from ppcls.engine import interrupt
with interrupt.heard() as signals:
    print("ready", flush=True)
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):  # in C, as a wait for another rank: no handler of Python's runs
        ctypes.CDLL(None).pthread_mutex_lock(lock)
"""


def test_a_second_one_ends_even_a_process_that_is_stuck_in_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        for _ in range(2):
            running.send_signal(signal.SIGTERM)
            running.stderr.readline()
            time.sleep(1.1)
    assert running.returncode == 143


def _raise_while_heard(error: BaseException) -> None:
    with heard():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        raise error


def test_all_is_put_back() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    threads = threading.active_count()
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            _raise_while_heard(error())
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_after_a_stop_the_launchers_repeats_do_no_harm() -> None:
    with pytest.raises(SignalExit):
        _raise_while_heard(SignalExit(signal.SIGTERM))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


def test_in_a_process_that_is_lent_all_is_put_back_after_a_stop() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(SignalExit), heard(lent=True):
        raise SignalExit(signal.SIGTERM)
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert signal.set_wakeup_fd(-1) == -1


def _interrupt_oneself() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)


def test_in_a_process_that_is_lent_each_further_ctrl_c_breaks_off_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with heard(lent=True) as signals:
        signals._again = 0.05
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: signals.stop)
        for _ in range(3):
            time.sleep(0.1)
            with pytest.raises(KeyboardInterrupt):
                _interrupt_oneself()
        time.sleep(0.1)  # no other one follows
    assert capfd.readouterr().err.count("SIGINT: breaks off") == 3


def test_waking_is_no_signal_and_comes_late_without_harm(capfd: pytest.CaptureFixture[str]) -> None:
    with heard(lent=True) as signals:
        signals._again, signals.stop = 0.0, signal.SIGINT
        signals.wake()
        time.sleep(0.05)
        assert not signals.breaking
    signals.breaking = True
    signals.wake()
    time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_the_main_thread_is_woken_until_it_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt comes just before it begins to wait."""
    attempts = []
    wake = Signals.wake

    def lost_at_first(signals: Signals) -> None:
        attempts.append(time.monotonic())
        if len(attempts) > 2:
            wake(signals)

    monkeypatch.setattr(Signals, "wake", lost_at_first)
    with heard(lent=True) as signals:
        signals._again = 0.0
        signals.stop = signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            _interrupt_oneself()
        assert len(attempts) == 3


def test_another_ones_handler_and_other_threads_are_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with heard():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    found = []

    def elsewhere() -> None:
        with heard() as signals:
            found.append((signal.getsignal(signal.SIGTERM), signals.stop))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [(signal.SIG_DFL, 0)]


def _worker() -> None:
    os.kill(os.getpid(), signal.SIGINT)  # as a terminal's Ctrl-C, which is the parent's to obey
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)


def test_a_forked_worker_ignores_ctrl_c_and_dies_of_sigterm() -> None:
    with heard() as signals:
        worker = multiprocessing.get_context("fork").Process(target=_worker)
        worker.start()
        worker.join()
        assert worker.exitcode == -signal.SIGTERM
        assert signals.stop == 0, "it is none of the parent's business"
