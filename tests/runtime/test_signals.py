"""Signals are recorded at once, wherever the main thread is, and everything is restored afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from paths import ROOT

from ppcls.errors import SignalExit, SignalInterrupt
from ppcls.runtime import signals as module
from ppcls.runtime.signals import SignalRequests, deferred_interrupt, handle_signals, interruptible

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _restored_handlers() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in NUMBERS]
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.001)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_requests_stop_and_raises_nothing(
    number: int, embedded: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with handle_signals(embedded=embedded) as requests:
        assert requests.stop == 0
        send(number)
        wait_until(lambda: requests.stop)
        assert requests.stop == number
        send(signal.SIGTERM)  # within the grace: means the same
        send(signal.SIGUSR1)
        wait_until(requests.take_save)
        assert requests.stop == number
    assert f"{signal.Signals(number).name}: saving after this update, then stopping" in capfd.readouterr().err


def test_usr1_requests_one_save() -> None:
    with handle_signals() as requests:
        send(signal.SIGUSR1)
        wait_until(requests.take_save)
        assert not requests.take_save()
        assert requests.stop == 0


class InterruptedFinalizer:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("error")
def test_signal_in_finalizer_is_recorded() -> None:
    """Without a handler Python would print and forget a KeyboardInterrupt that is raised there."""
    with handle_signals() as requests:
        InterruptedFinalizer()
        wait_until(lambda: requests.stop)


def test_second_signal_after_the_grace_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(module.os, "_exit", codes.append)
    requests = SignalRequests(grace=0.0)
    requests.receive(signal.SIGINT)
    requests.receive(signal.SIGTERM)
    assert codes == [143]
    within_grace = SignalRequests(grace=60.0)
    within_grace.receive(signal.SIGTERM)
    within_grace.receive(signal.SIGTERM)
    assert codes == [143]


STUCK_IN_C = """
import ctypes, os, signal, sys
from ppcls.runtime.signals import handle_signals
with handle_signals() as requests:
    requests._grace = 0.0
    print("ready", flush=True)
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):  # in C, as a wait for another rank: no Python handler runs
        ctypes.CDLL(None).pthread_mutex_lock(lock)
"""


def test_second_signal_ends_a_process_stuck_in_c() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK_IN_C], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        for _ in range(2):
            running.send_signal(signal.SIGTERM)
            running.stderr.readline()
    assert running.returncode == 143


def raise_while_handled(error: BaseException) -> None:
    with handle_signals():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        raise error


def test_handlers_and_thread_are_removed_after_an_error() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    threads = threading.active_count()
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            raise_while_handled(error())
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_repeated_signal_after_stop_is_ignored() -> None:
    """The launcher repeats its signals until the process has ended."""
    with pytest.raises(SignalExit):
        raise_while_handled(SignalExit(signal.SIGTERM))
    send(signal.SIGTERM)
    time.sleep(0.01)


def test_embedded_run_restores_handlers_after_stop() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(SignalExit), handle_signals(embedded=True):
        raise SignalExit(signal.SIGTERM)
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert signal.set_wakeup_fd(-1) == -1


def interrupt_main_thread() -> None:
    threading.Timer(0.02, send, [signal.SIGINT]).start()
    threading.Event().wait(30)


def test_embedded_run_is_interrupted_by_each_further_ctrl_c(capfd: pytest.CaptureFixture[str]) -> None:
    with handle_signals(embedded=True) as requests:
        requests._grace = 0.01
        send(signal.SIGINT)
        assert requests.stop
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                interrupt_main_thread()
        time.sleep(0.02)  # no further one follows
    assert capfd.readouterr().err.count("SIGINT: stopping immediately") == 3


def test_other_handlers_and_other_threads_are_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with handle_signals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    found = []

    def run() -> None:
        with handle_signals() as requests:
            found.append((signal.getsignal(signal.SIGTERM), requests.stop))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(signal.SIG_DFL, 0)]


def interrupted_worker() -> None:
    send(signal.SIGINT)  # as a Ctrl-C in a terminal, which the parent handles
    send(signal.SIGTERM)
    time.sleep(100)


@pytest.mark.parametrize("embedded", [False, True])
def test_forked_worker_ignores_ctrl_c_and_dies_of_sigterm(embedded: bool) -> None:
    with handle_signals(embedded=embedded) as requests:
        worker = multiprocessing.get_context("fork").Process(target=interrupted_worker)
        worker.start()
        worker.join()
        assert worker.exitcode == -signal.SIGTERM
        assert requests.stop == 0, "the parent must not record the signals of a worker"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_interruptible_block_raises_interrupted_and_restores_handlers(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(SignalInterrupt) as caught, interruptible():
        send(number)
    assert caught.value.code == 128 + number
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_process_that_is_stuck_in_c_ends_after_sigterm() -> None:
    code = """
import ctypes, os, signal, threading
from ppcls.runtime import signals

signals._GRACE = 0.5
with signals.interruptible():
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # so that another thread receives it
    ctypes.CDLL(None).sleep(900)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 128 + signal.SIGTERM


def test_signal_restores_handlers_that_are_not_all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    install = signal.signal

    def install_and_send(number: int, handler: Callable[..., None]) -> object:
        previous = install(number, handler)
        if handler not in before:
            send(number)
        return previous

    monkeypatch.setattr(signal, "signal", install_and_send)
    with pytest.raises(SignalInterrupt), interruptible():
        pytest.fail("the block begins after the signal")
    assert [signal.getsignal(number) for number in NUMBERS] == before


@pytest.mark.parametrize("handled", [False, True])
def test_deferred_interrupt_comes_at_the_end_of_the_block(handled: bool) -> None:
    events: list[str] = []
    own = (lambda *_: events.append("own")) if handled else signal.default_int_handler
    signal.signal(signal.SIGINT, own)
    with nullcontext() if handled else pytest.raises(KeyboardInterrupt), deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        events.append("end")
    assert signal.getsignal(signal.SIGINT) is own
    assert events == (["own", "end"] if handled else ["end"])


def test_second_interrupt_of_a_deferring_block_ends_the_process() -> None:
    code = """
import os, signal
from ppcls.runtime.signals import deferred_interrupt

with deferred_interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    os.write(1, b"deferred")
    os.kill(os.getpid(), signal.SIGINT)
    os.write(1, b"never")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "deferred", "")


def test_forked_worker_of_interruptible_block_ends_quietly() -> None:
    """In a separate process: a process that has trained changes the signal handlers of its forks."""
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
