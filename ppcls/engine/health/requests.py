"""Collects requests to save or stop between two updates, and makes them equal on all ranks.

A signal may reach one rank only, or several ranks in different updates. A rank that stopped on its own would
leave the others waiting in their next exchange of gradients.
"""

from __future__ import annotations

import time

from ppcls.engine.checkpoint.output_folder import OutputFolder
from ppcls.engine.core.settings import CheckpointSettings
from ppcls.engine.health.time_limit import PLANNED
from ppcls.errors import SignalExit, UserError
from ppcls.runtime.collectives import RequestExchange, all_gather_json
from ppcls.runtime.signals import SignalRequests
from ppcls.runtime.start import Runtime

# Ranks exchange one number for all reasons to stop, and the largest one wins.
_MOVED = 1000  # value of `SaveStopRequests.stop` if the output folder was moved; larger than any signal
_MOVED_INTERVAL = 1.0  # seconds between two checks of the output folder


class SaveStopRequests:
    """Collects requests of all ranks to save or stop.

    They come from signals, from save intervals, and from an output folder that was renamed or removed.

    Args:
        settings: Intervals between saves.
        signals: Requests from the signals that this rank received.
        output: Output folder of the run, on rank 0; None if the run writes no files.

    Attributes:
        stop: Number of the signal that stops all ranks, or 1000 if the output folder was moved; 0 for none.
        pace: Largest pace of all ranks at the last exchange; see `TimeLimit.pace`.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        runtime: Runtime,
        signals: SignalRequests,
        output: OutputFolder | None = None,
    ) -> None:
        self._every = settings.save_steps
        self._minutes = settings.save_minutes
        self._runtime = runtime
        self._signals = signals
        self._exchange = RequestExchange(runtime, kinds=3)
        self._output = output
        self._last_check = time.monotonic()
        self._save = False
        self.stop = 0
        self.pace = PLANNED
        self.saved()

    def exchange(self, pace: int = PLANNED) -> None:
        """Exchanges requests between ranks. All ranks must call it at the same points of the run.

        Args:
            pace: Pace of this rank, > 0; see `TimeLimit.pace`. The slowest rank needs the largest one.
        """
        save = self._is_time() or self._signals.take_save()
        request = _MOVED if self._is_moved() else self._signals.stop
        stop, any_save, any_pace = self._exchange.any_rank([request, int(save), pace])
        self.stop = self.stop or stop
        self.pace = any_pace or self.pace  # 0 if the ranks exchanged nothing
        self._save |= bool(any_save)

    def must_save(self, update: int) -> bool:
        """Returns whether the run must save a checkpoint after ``update``."""
        return bool(self.stop) or self._save or (self._every is not None and update % self._every == 0)

    def saved(self) -> None:
        """Clears requests to save, and restarts the interval ``Global.save_minutes``."""
        self._last_save = time.monotonic()
        self._save = False

    def raise_if_stopped(self) -> None:
        """Raises an exception if all ranks must stop.

        Raises:
            SignalExit: A signal stops the run.
            UserError: The output folder was renamed or removed.
        """
        if self.stop == _MOVED:
            text = None if self._output is None else self._output.describe()
            raise UserError(all_gather_json(self._runtime, text)[0])
        if self.stop:
            raise SignalExit(self.stop)

    def check(self) -> None:
        """Exchanges requests, then raises an exception if all ranks must stop; see `raise_if_stopped`."""
        self.exchange()
        self.raise_if_stopped()

    def _is_moved(self) -> bool:
        """Returns whether the output folder was moved. Checks it at most once per second."""
        now = time.monotonic()
        if self._output is None or now - self._last_check < _MOVED_INTERVAL:
            return False
        self._last_check = now
        return self._output.is_moved()

    def _is_time(self) -> bool:
        """Returns whether ``Global.save_minutes`` have passed since the last save. On rank 0 only."""
        minutes = self._minutes
        return (
            self._runtime.is_main
            and minutes is not None
            and time.monotonic() - self._last_save >= 60 * minutes
        )
