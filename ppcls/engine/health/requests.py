"""Collects requests to save or stop between two updates, and makes them equal on all ranks."""

from __future__ import annotations

import time

from ppcls.engine.core.settings import CheckpointSettings
from ppcls.errors import SignalExit
from ppcls.runtime.collectives import RequestExchange
from ppcls.runtime.signals import SignalRequests
from ppcls.runtime.start import Runtime


class SaveStopRequests:
    """Collects requests of all ranks to save or stop. They come from signals and from save intervals.

    Args:
        settings: Intervals between saves.
        signals: Requests from the signals that this rank received.

    Attributes:
        stop: Number of the signal that stops all ranks; 0 for none.
    """

    def __init__(self, settings: CheckpointSettings, runtime: Runtime, signals: SignalRequests) -> None:
        self._every = settings.save_steps
        self._minutes = settings.save_minutes
        self._is_main = runtime.is_main
        self._signals = signals
        self._exchange = RequestExchange(runtime, kinds=2)
        self._save = False
        self.stop = 0
        self.saved()

    def exchange(self) -> None:
        """Exchanges requests between ranks. All ranks must call it at the same points of the run."""
        save = self._is_time() or self._signals.take_save()
        stop, any_save = self._exchange.any_rank([self._signals.stop, int(save)])
        self.stop = self.stop or stop
        self._save |= bool(any_save)

    def must_save(self, update: int) -> bool:
        """Returns whether the run must save a checkpoint after ``update``."""
        return bool(self.stop) or self._save or (self._every is not None and update % self._every == 0)

    def saved(self) -> None:
        """Clears requests to save, and restarts the interval ``Global.save_minutes``."""
        self._last_save = time.monotonic()
        self._save = False

    def raise_if_stopped(self) -> None:
        """Raises `SignalExit` if a signal stops the run."""
        if self.stop:
            raise SignalExit(self.stop)

    def check(self) -> None:
        """Exchanges requests, then raises `SignalExit` if a signal stops the run."""
        self.exchange()
        self.raise_if_stopped()

    def _is_time(self) -> bool:
        """Returns whether ``Global.save_minutes`` have passed since the last save. On rank 0 only."""
        minutes = self._minutes
        return self._is_main and minutes is not None and time.monotonic() - self._last_save >= 60 * minutes
