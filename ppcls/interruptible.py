"""SIGTERM and SIGHUP as Ctrl-C is, for tools that have nothing to save."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ppcls.errors import Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Has SIGTERM and SIGHUP raise `Interrupted` within the block, in the main thread.

    Where somebody else than `ppcls.imported` imports Paddle within it, that ends it.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return
    process = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != process:  # a loader's worker, which has nothing to tell
            os._exit(128 + number)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
