"""Ctrl-C that can't get lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a finalizer or a weak reference's
callback it is printed and forgotten, and matplotlib and DALI have many of both.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Remembers whether Ctrl-C came."""

    def __init__(self) -> None:
        self._came = False

    def check(self) -> None:
        """Raises KeyboardInterrupt where one came and got lost."""
        if self._came:
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt


@contextmanager
def heard() -> Iterator[Interrupt]:
    """Hears Ctrl-C within the block; nothing changes where signals are not Python's to handle as usual."""
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    show = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else show(lost)
    signal.signal(signal.SIGINT, interrupt._handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = show
