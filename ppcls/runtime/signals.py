"""Signals while training: heard at once, obeyed between two updates.

Python runs its handlers in the main thread, and not before that returns from a library. So a thread of its
own reads the numbers that Python's C handler writes down at once, and a second signal ends the process even
where the main thread waits for another rank.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ppcls.errors import SignalExit, SignalInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Has SIGTERM and SIGHUP raise `SignalInterrupt` within the block, in the main thread.

    Where somebody else than `ppcls.runtime.imported` imports Paddle within it, that ends it.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return
    process = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != process:  # a loader's worker, which has nothing to tell
            os._exit(128 + number)
        raise SignalInterrupt(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_STOP = (signal.SIGTERM, signal.SIGINT)
_WAKE = signal.SIGURG  # of no consequence where nobody handles it: one that comes late does no harm
_ENDS = 0  # no signal's number
_AGAIN = 0.1  # seconds between two attempts to wake the main thread


class Signals:
    """What signals have asked for.

    Attributes:
        stop: Number of the first SIGTERM or SIGINT; 0 where none came.
        breaking: Whether a KeyboardInterrupt is due that the main thread has not raised yet.

    Args:
        again: Seconds within which more of them mean the same: Slurm signals a launcher and its ranks, and
            the launcher each of its ranks three times, one rank after the other.
        lent: Whether the process is somebody else's: a second Ctrl-C does not end it, but raises
            KeyboardInterrupt.
    """

    def __init__(self, again: float = 1.0, lent: bool = False) -> None:
        self.stop = 0
        self.breaking = False
        self._save = False
        self._again, self._first, self._lent = again, 0.0, lent

    def take_save(self) -> bool:
        """Returns whether SIGUSR1 came since the last call."""
        came, self._save = self._save, False
        return came

    def obey(self, _number: int, _frame: FrameType | None) -> None:
        """Is Python's handler of what `wake` sends.

        Raises:
            KeyboardInterrupt: A second Ctrl-C has been heard, in a process that is somebody else's.
        """
        if self.breaking:
            self.breaking, self._first = False, time.monotonic()
            raise KeyboardInterrupt

    def hear(self, number: int) -> None:
        """Takes a signal; a second one that asks to stop ends the process."""
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            self._save = True
            _say(f"{name}: saves after this update")
        elif not self.stop:
            self.stop, self._first = number, time.monotonic()
            _say(f"{name}: saves after this update and ends; another signal ends at once")
        elif time.monotonic() - self._first > self._again:
            if not (self._lent and number == signal.SIGINT):
                _say(f"{name}: ends at once")
                os._exit(128 + number)
            elif not self.breaking:
                _say("SIGINT: breaks off")
                self.breaking = True
                self.wake()

    def wake(self) -> None:
        """Has `obey` called in the main thread, even where that waits in a library.

        To be repeated while ``breaking``: one that comes just before the main thread begins to wait is lost.
        """
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)


def _written_down(_number: int, _frame: FrameType | None) -> None:
    """Is Python's handler of the signals: its being there has the one in C write their numbers down."""


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


class _Listener:
    """Hands signals to `Signals.hear` in a thread; forked processes, such as a loader's workers, do not."""

    def __init__(self, signals: Signals, numbers: Sequence[int]) -> None:
        self._signals = signals
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._before: dict[int, Any] = {number: signal.signal(number, _written_down) for number in numbers}
        self._before[_WAKE] = signal.signal(_WAKE, signals.obey)
        self._wakeup = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def close(self) -> None:
        """Puts everything back."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        self._mouth.send(bytes([_ENDS]))
        self._thread.join()
        self._mouth.close()
        self._ears.close()

    def _listen(self) -> None:
        while True:
            self._ears.settimeout(_AGAIN if self._signals.breaking else None)
            try:
                number = self._ears.recv(1)[0]
            except TimeoutError:
                self._signals.wake()
                continue
            if number == _ENDS:
                return
            if number in self._before and number != _WAKE:
                self._signals.hear(number)

    def _leave_to_parent(self) -> None:
        """Has a forked process ignore Ctrl-C, for which the terminal signals all, and die of the others."""
        if not self._before or threading.current_thread() is not threading.main_thread():
            return
        signal.set_wakeup_fd(-1)
        for number in self._before:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def heard(world: int = 1, lent: bool = False) -> Iterator[Signals]:
    """Hears SIGTERM, SIGINT and SIGUSR1 within the block.

    Signals that somebody else handles are left to them, all of them outside the main thread. After
    `SignalExit` they are heard until the process ends, where it is not ``lent``: the launcher repeats them.

    Args:
        world: Number of processes.
        lent: Whether the process is somebody else's, and lives on.
    """
    signals = Signals(again=1.0 + 0.6 * min(world, 16) if world > 1 else 1.0, lent=lent)
    usual = (signal.SIG_DFL, signal.default_int_handler)
    numbers = [each for each in (*_STOP, signal.SIGUSR1) if signal.getsignal(each) in usual]
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield signals
        return
    listener = _Listener(signals, numbers)
    try:
        yield signals
    except SignalExit:
        if lent:
            listener.close()
        raise
    except BaseException:
        listener.close()
        raise
    else:
        listener.close()
