"""What comes between two updates: whether to save, and whether to stop, the same on all ranks."""

from __future__ import annotations

import time

from ppcls.config.sections.run import Global
from ppcls.errors import SignalExit
from ppcls.runtime.collectives import RequestExchange
from ppcls.runtime.signals import SignalRequests
from ppcls.runtime.start import Runtime


class Control:
    """Decides after each update what is due besides training.

    Args:
        settings: How often to save.
        runtime: Of this rank.
        signals: That this rank heard.

    Attributes:
        stop: Number of the signal that ends the run on all ranks; 0 for none.
    """

    def __init__(self, settings: Global, runtime: Runtime, signals: SignalRequests) -> None:
        self._every, self._minutes = settings.save_steps, settings.save_minutes
        self._is_main, self._signals = runtime.is_main, signals
        self._wishes = RequestExchange(runtime, kinds=2)
        self._asked = False
        self.stop = 0
        self.saved()

    def look(self) -> None:
        """Hears what any rank wants; all ranks do so at the same points."""
        save = self._time_is_up() or self._signals.take_save()
        stop, asked = self._wishes.any_rank([self._signals.stop, int(save)])
        self.stop = self.stop or stop
        self._asked |= bool(asked)

    def must_save(self, update: int) -> bool:
        """Returns whether to save after ``update``."""
        return bool(self.stop) or self._asked or (self._every is not None and update % self._every == 0)

    def saved(self) -> None:
        """Begins the time to the next save anew."""
        self._began, self._asked = time.monotonic(), False

    def leave(self) -> None:
        """Raises `SignalExit` where a signal ends the run."""
        if self.stop:
            raise SignalExit(self.stop)

    def check(self) -> None:
        """Looks, and raises `SignalExit` where a signal ends the run."""
        self.look()
        self.leave()

    def _time_is_up(self) -> bool:
        """Whether rank 0's clock says so; the others' do not count."""
        minutes = self._minutes
        return self._is_main and minutes is not None and time.monotonic() - self._began >= 60 * minutes
