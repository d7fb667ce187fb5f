"""What comes between two updates: whether to save now, the same on all ranks."""

from __future__ import annotations

import time

from ppcls.config.sections import Global
from ppcls.engine.wishes import Wishes
from ppcls.runtime import Runtime


class Control:
    """Decides after each update what is due besides training.

    Args:
        settings: How often to save.
        runtime: Of this rank.
    """

    def __init__(self, settings: Global, runtime: Runtime) -> None:
        self._every, self._minutes = settings.save_steps, settings.save_minutes
        self._is_main = runtime.is_main
        self._wishes = Wishes(runtime, kinds=1)
        self.saved()

    def saved(self) -> None:
        """Begins the time to the next save anew."""
        self._began = time.monotonic()

    def must_save(self, update: int) -> bool:
        """Returns whether to save after ``update``; all ranks ask after each, and get the same answer."""
        (asked,) = self._wishes.of_all([self._time_is_up()])
        return bool(asked) or (self._every is not None and update % self._every == 0)

    def _time_is_up(self) -> bool:
        """Whether rank 0's clock says so; the others' do not count."""
        minutes = self._minutes
        return self._is_main and minutes is not None and time.monotonic() - self._began >= 60 * minutes
