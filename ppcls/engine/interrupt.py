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

from ppcls.errors import Stopped

_STOP = (signal.SIGTERM, signal.SIGINT)
_ENDS = 0  # no signal's number


class Signals:
    """What signals have asked for.

    Attributes:
        stop: Number of the first SIGTERM or SIGINT; 0 where none came.

    Args:
        again: Seconds within which more of them mean the same: Slurm signals a launcher and its ranks, and
            the launcher each of its ranks three times, one rank after the other.
    """

    def __init__(self, again: float = 1.0) -> None:
        self.stop = 0
        self._save = False
        self._again, self._first = again, 0.0

    def take_save(self) -> bool:
        """Returns whether SIGUSR1 came since the last call."""
        came, self._save = self._save, False
        return came

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
            _say(f"{name}: ends at once")
            os._exit(128 + number)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


class _Listener:
    """Hands signals to `Signals.hear` in a thread; forked processes, such as a loader's workers, do not."""

    def __init__(self, signals: Signals, numbers: Sequence[int]) -> None:
        self._signals = signals
        self._ears, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._before: dict[int, Any] = {number: signal.signal(number, _nothing) for number in numbers}
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
        while (data := self._ears.recv(1)) and data[0] != _ENDS:
            if data[0] in self._before:
                self._signals.hear(data[0])

    def _leave_to_parent(self) -> None:
        """Has a forked process ignore Ctrl-C, for which the terminal signals all, and die of the others."""
        if not self._before or threading.current_thread() is not threading.main_thread():
            return
        signal.set_wakeup_fd(-1)
        for number in self._before:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Is there so that Python's C handler takes the signal, and writes its number down."""


@contextmanager
def heard(world: int = 1) -> Iterator[Signals]:
    """Hears SIGTERM, SIGINT and SIGUSR1 within the block.

    Signals that somebody else handles are left to them, all of them outside the main thread. After `Stopped`
    they are heard until the process ends: the launcher repeats them.

    Args:
        world: Number of processes.
    """
    signals = Signals(again=1.0 + 0.6 * min(world, 16) if world > 1 else 1.0)
    usual = (signal.SIG_DFL, signal.default_int_handler)
    numbers = [each for each in (*_STOP, signal.SIGUSR1) if signal.getsignal(each) in usual]
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield signals
        return
    listener = _Listener(signals, numbers)
    try:
        yield signals
    except Stopped:
        raise
    except BaseException:
        listener.close()
        raise
    else:
        listener.close()
