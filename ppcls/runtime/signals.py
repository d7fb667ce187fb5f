"""Handles signals: training saves and stops between two updates, other work is interrupted.

Python calls signal handlers in the main thread, and only between two bytecode instructions. No handler runs
while the main thread waits in C++, for example for another rank. A process that executes a single run
therefore reads signals in a separate thread, from the descriptor to which Python's C handler writes signal
numbers. A second signal can then end the process immediately.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ppcls.errors import SignalExit, SignalInterrupt
from ppcls.files import print_error

_DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # by children; SIGTERM is only ignored from others
_CLOSE = 0  # not the number of any signal
_GRACE = 10.0  # seconds until a process ends whose main thread does not react to a signal


@contextmanager
def interruptible() -> Iterator[None]:
    """Returns a context in which SIGTERM and SIGHUP raise `SignalInterrupt` in the main thread.

    Thus commands remove their temporary files. If the main thread does not react within ten seconds, such as
    in C++ code that hangs, the process ends.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    process = os.getpid()

    reacted = threading.Event()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked worker of a loader ends without a report
            os._exit(128 + number)
        reacted.set()
        raise SignalInterrupt(number)

    def end_if_stuck(number: int) -> None:
        if number in previous and not reacted.wait(_GRACE):
            os._exit(128 + number)

    # A process that nohup started ignores SIGHUP, and must continue to do so.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    previous = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    reader = _SignalReader(end_if_stuck)
    reader.start()
    try:
        for number in previous:  # in this block, because the signal can come at once
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        reacted.set()
        reader.close()


class _SignalReader:
    """Calls a function in a thread for each signal that has a Python handler.

    Python's C handler writes the number of the signal to a socket, also while the main thread waits in C++.

    Args:
        receive: Function of the number of a signal.
    """

    def __init__(self, receive: Callable[[int], None]) -> None:
        self._receive = receive
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._is_open = True
        self._thread = threading.Thread(target=self._read, name="signals", daemon=True)
        os.register_at_fork(after_in_child=self._reset_in_child)

    def start(self) -> None:
        """Starts the thread. Signals that came before are not lost."""
        self._thread.start()

    def close(self) -> None:
        """Restores the previous descriptor, and ends the thread."""
        self._is_open = False
        signal.set_wakeup_fd(self._previous)
        self._writer.send(bytes([_CLOSE]))
        self._thread.join()
        self._writer.close()
        self._reader.close()

    def _read(self) -> None:
        while (number := self._reader.recv(1)[0]) != _CLOSE:
            self._receive(number)

    def _reset_in_child(self) -> None:
        if self._is_open and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Returns a context that raises KeyboardInterrupt for Ctrl-C only at its end.

    An import that Ctrl-C interrupts in C++ would raise an ImportError, or leave a module half-initialized. A
    second Ctrl-C ends the process at once.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def remember(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            os._exit(128 + number)
        interrupted = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


@contextmanager
def group_signals_blocked() -> Iterator[None]:
    """Blocks the signals of `ignore_group_signals`, also in child processes that start in the context.

    Otherwise such a signal would end a child that has not yet called `ignore_group_signals`. This process
    handles signals that it receives meanwhile at the end of the context.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, *_IGNORED})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def ignore_group_signals(end: Callable[[], None]) -> None:
    """Makes a child process ignore signals that are sent to a whole group of processes.

    The shell's ``timeout``, systemd, Slurm and a terminal that closes send their signals to all processes of
    a run. The parent saves and then ends its children. If a child ended by itself, the parent would fail
    before it has saved. Must be called in the main thread of the child.

    Args:
        end: Function that ends the process. It is called in another thread when the parent sends SIGTERM.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # A handler would not know the sender. The mask also replaces the handler that Paddle installs in C++.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent = os.getppid()

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        end()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def describe_ignored() -> str:
    """Returns a line for the log if the shell made this process ignore Ctrl-C, else an empty string."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        return ""
    stop = f"stop it with: kill {os.getpid()}"
    return f"Ctrl-C is ignored, because the shell started this process in the background; {stop}"


class SignalRequests:
    """Records the requests of signals to save or stop.

    Attributes:
        stop: Number of the first SIGTERM, SIGINT or SIGHUP; 0 if there was none.

    Args:
        grace: Seconds after the first signal in which further signals are ignored as repetitions. Slurm sends
            signals to the launcher and to its ranks, and the launcher sends each signal three times to every
            rank.
        embedded: Whether the process continues after the run, for example a notebook. A second Ctrl-C then
            raises KeyboardInterrupt instead of ending the process.
    """

    def __init__(self, grace: float = 1.0, embedded: bool = False) -> None:
        self.stop = 0
        self._save = False
        self._grace = grace
        self._last = 0.0
        self._embedded = embedded

    def take_save(self) -> bool:
        """Returns whether the process received SIGUSR1 since the last call."""
        requested = self._save
        self._save = False
        return requested

    def receive(self, number: int) -> None:
        """Records a signal. A second request to stop ends the process immediately.

        Raises:
            KeyboardInterrupt: This is a second Ctrl-C, and the run is embedded.
        """
        name = signal.Signals(number).name
        now = time.monotonic()
        if number == signal.SIGUSR1:
            self._save = True
            print_error(f"{name}: saving after this update")
        elif not self.stop:
            self.stop = number
            self._last = now
            print_error(f"{name}: saving after this update, then stopping; a second signal stops immediately")
        elif now - self._last > self._grace:
            print_error(f"{name}: stopping immediately, without saving")
            if self._embedded and number == signal.SIGINT:
                self._last = now
                raise KeyboardInterrupt
            os._exit(128 + number)


class _SignalHandlers:
    """Forwards signals to `SignalRequests.receive`, in a separate thread or, if embedded, in the main thread.

    Forked processes, such as the workers of a loader, ignore Ctrl-C. Other signals end them.
    """

    def __init__(self, requests: SignalRequests, numbers: Sequence[int], embedded: bool) -> None:
        self._requests = requests
        # With a thread, the Python handler does nothing. It must be installed, because only then Python's C
        # handler writes to the socket.
        handler = (lambda number, _frame: requests.receive(number)) if embedded else (lambda *_: None)
        self._reader = None if embedded else _SignalReader(self._receive)
        self._previous: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers}
        if self._reader is not None:
            self._reader.start()
        os.register_at_fork(after_in_child=self._reset_in_child)

    def restore(self) -> None:
        """Restores the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if self._reader is not None:
            self._reader.close()

    def _receive(self, number: int) -> None:
        if number in self._previous:
            self._requests.receive(number)

    def _reset_in_child(self) -> None:
        if not self._previous or threading.current_thread() is not threading.main_thread():
            return
        for number in self._previous:
            # A terminal sends Ctrl-C to all processes, and the parent handles it.
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def handle_signals(world_size: int = 1, embedded: bool = False) -> Iterator[SignalRequests]:
    """Returns a context that records SIGTERM, SIGINT, SIGHUP and SIGUSR1.

    Signals that already have a handler keep it. Outside the main thread, all signals keep their handlers.
    After `SignalExit`, the new handlers stay installed until the process ends, because the launcher repeats
    its signals. An embedded run always restores the previous handlers.

    Args:
        world_size: Number of ranks.
        embedded: Whether the process continues after the run.

    Yields:
        The recorded requests.
    """
    grace = 1.0 + 0.6 * min(world_size, 16) if world_size > 1 else 1.0
    requests = SignalRequests(grace, embedded)
    candidates = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    numbers = [number for number in candidates if signal.getsignal(number) in _DEFAULT_HANDLERS]
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield requests
        return
    handlers = _SignalHandlers(requests, numbers, embedded)
    keep = False
    try:
        yield requests
    except SignalExit:
        keep = not embedded
        raise
    finally:
        if not keep:
            handlers.restore()
