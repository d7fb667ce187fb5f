"""Adapts the learning rate schedule of a run to its time limit."""

from __future__ import annotations

from ppcls.engine.core.settings import EngineSettings
from ppcls.engine.core.state import TrainState
from ppcls.engine.health.time_limit import PLANNED, STOP, TimeLimit
from ppcls.errors import counted

_WORTH_LOGGING = 0.9  # share of the number of updates in the previous line, below which a new line is logged


class Pacer:
    """Renews the plan of a run after each update.

    Args:
        state: State of the run, before an epoch.
        settings: Length of the run, and its evaluations.
        limit: Time that the run may use.
    """

    def __init__(self, state: TrainState, settings: EngineSettings, limit: TimeLimit) -> None:
        self._state = state
        self._limit = limit
        self._images = images_per_update(state)
        self._interval = settings.eval_interval * state.updates_per_epoch
        self._total = settings.epochs * state.updates_per_epoch
        self._rest = self._total - state.epoch * state.updates_per_epoch - state.updates_of_epoch

    def after_update(self) -> int:
        """Measures an update, and returns the pace that this rank needs; see `TimeLimit.pace`."""
        self._rest -= 1
        self._limit.measure(self._images)
        progress = self._state.progress
        position = progress.update + progress.schedule_shift
        return self._limit.pace(self._images, self._interval, position, self._total, max(1, self._rest))

    def apply(self, pace: int) -> str | None:
        """Moves the schedule by the pace of the slowest rank, or ends the run if no further update fits.

        Returns:
            A line for the log if fewer updates fit than before.
        """
        limit = self._limit
        if limit.seconds is None:
            return None
        if pace == STOP:
            limit.reached = self._rest > 0
            return None
        progress = self._state.progress
        position = progress.update + progress.schedule_shift
        left = PLANNED * (self._total - position) / pace  # updates until the schedule ends
        progress.schedule_shift += pace / PLANNED - 1
        expected = progress.update + round(left)
        planned = progress.update + self._rest
        if expected >= _WORTH_LOGGING * min(planned, limit.announced):
            return None
        limit.announced = expected
        return (
            f"only about {expected} of {counted(planned, 'update')} are expected to end within "
            f"{limit.seconds:g} s (Global.time_limit), so the learning rate schedule becomes shorter"
        )


def images_per_update(state: TrainState) -> int:
    """Returns the number of images of a complete update, on all ranks."""
    order = state.loader.order
    return order.global_batch * order.accumulate
