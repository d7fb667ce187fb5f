"""Ends a run in time: ``Global.time_limit``.

Decisions:

- The plan is renewed after each update, from the duration of the last updates. If not all of them fit, the
  learning rate schedule advances faster, so that it still reaches its end; if they fit again, slower.
- The run ends after the update after which another one would be late. The evaluation, the report and the
  checkpoint must still fit, so their expected duration is kept free.
- The end of a run needs a fixed amount of processor time. How long it takes depends on other programs, so a
  short loop measures every few seconds how much they slow down the main thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import psutil

from ppcls.runtime.collectives import all_reduce
from ppcls.runtime.start import Runtime

PLANNED = 1000  # pace of a run that is in time: the schedule advances by one update per update
STOP = 10**6  # pace of a run that must end
_END_SECONDS = 3.0  # processor time from the last evaluation to the end of the process, without the audit
_AUDIT_SHARE = 0.1  # of the limit, kept free for heat maps and the audit of the images in the report
_MOST_AUDIT = 30.0  # seconds
_AUDIT_SECONDS = 3.0  # processor time of both that does not depend on the number of images
_REPORT_SHARE = 0.5  # of the spare time, for heat maps and the audit
_KEPT_SHARE = 0.4  # of the time for training, at most, that one part of it leaves to the next one
_PROBE_INTERVAL = 2.0  # seconds between two loops, which then cost 1 % of the time
_PROBE_SECONDS = 0.02  # processor time; shorter work may end before another program gets the core
_MEMORY = 10.0  # seconds after which a measurement counts for 1/e of a new one
_SLOWEST = 20.0  # largest factor by which other programs are assumed to slow down the end
_MARGIN = 1.2  # an evaluation may take longer than the previous one


class TimeLimit:
    """Measures the progress of a run, and says how much time it has.

    All methods must be called by the main thread.

    Args:
        seconds: Limit in seconds; None for no limit.
        start: Time of ``clock`` from which the limit counts.
        evaluated: Number of images per evaluation.
        slowdown: Duration of the start of the process, divided by its processor time.
        clock: Function that returns the time in seconds.
        probe: Function that returns the duration of some work, divided by its processor time; None for a
            loop.

    Attributes:
        seconds: Limit in seconds; None for no limit.
        reached: Whether the run ends after the current update or epoch. Equal on all ranks.
        announced: Lowest number of updates that was logged; infinite before.
        slowdown: Factor by which other programs slow down the main thread.
    """

    def __init__(
        self,
        seconds: float | None = None,
        start: float = 0.0,
        evaluated: int = 0,
        slowdown: float = 1.0,
        clock: Callable[[], float] = time.time,
        probe: Callable[[], float] | None = None,
    ) -> None:
        self.seconds = seconds
        self.reached = False
        self.announced = math.inf
        self._start = start
        self._evaluated = evaluated
        self._clock = clock
        self._probe = probe or _measure_slowdown
        self._last = clock()
        self._probed = self._last
        self.slowdown = min(max(slowdown, 1.0), _SLOWEST)
        self._started = False
        self._seconds = 0.0  # recent seconds of training or of computing features, and the images in them
        self._images = 0.0
        self._evaluation: tuple[float, float] | None = None  # seconds, and seconds per image before it

    @classmethod
    def of_run(cls, seconds: float | None, runtime: Runtime, evaluated: int) -> TimeLimit:
        """Returns the limit of a run, from the start of the process if it exists only for the run.

        Args:
            seconds: Limit in seconds; None for no limit.
            runtime: Whether the process exists only for this run.
            evaluated: Number of images per evaluation.
        """
        now = time.time()
        if runtime.embedded:
            return cls(seconds, now, evaluated)
        start = min(now, psutil.Process().create_time())
        return cls(seconds, start, evaluated, (now - start) / max(time.thread_time(), 1e-3))

    @property
    def age(self) -> float:
        """Number of seconds since the start."""
        return self._clock() - self._start

    @property
    def left(self) -> float:
        """Number of seconds until the process must end; infinite without a limit."""
        return math.inf if self.seconds is None else self.seconds - self.age

    @property
    def end(self) -> float:
        """Expected seconds from the last evaluation to the end of the process, without the audit."""
        return _END_SECONDS * self.slowdown

    @property
    def spare(self) -> float:
        """Number of seconds that a run without further evaluations may use; infinite without a limit."""
        return self.left - self.end

    @property
    def for_report(self) -> float:
        """Number of seconds for heat maps and the audit; infinite without a limit, negative without time."""
        return _REPORT_SHARE * self.spare - _AUDIT_SECONDS * self.slowdown

    @property
    def for_training(self) -> float:
        """Number of seconds for training, before the last evaluation; infinite without a limit."""
        if self.seconds is None:
            return math.inf
        audit = min(_AUDIT_SHARE * self.seconds, _MOST_AUDIT)
        return self.spare - audit - _MARGIN * self._expected_evaluation

    def begin_part(self, kept: float, floor: float) -> Callable[[], float]:
        """Returns a function that returns the number of seconds until a part of the training must end.

        Args:
            kept: Number of seconds that the next part needs. At most 40 % of the time for training are kept.
            floor: Share of the limit that the part may use in any case, so that a run whose end is expected
                to take all of the time still has a result.
        """
        if self.seconds is None:
            return lambda: math.inf
        kept = min(kept, _KEPT_SHARE * self.for_training)
        least = self.age + floor * self.seconds
        return lambda: max(self.for_training - kept, least - self.age)

    @property
    def _per_image(self) -> float:
        return self._seconds / self._images if self._images else 0.0

    @property
    def _expected_evaluation(self) -> float:
        """Expected seconds of an evaluation. Before the first one, an image takes as long as in training."""
        if self._evaluation is None:
            return self._per_image * self._evaluated
        seconds, before = self._evaluation
        return seconds * max(1.0, self._per_image / before if before else 1.0)

    def begin(self) -> None:
        """Is called before training or computing features; time since the last measurement does not count."""
        self._measure()

    def measure(self, images: int) -> None:
        """Is called after each update, or each batch whose features were computed.

        Args:
            images: Number of images since the last call, on all ranks.
        """
        elapsed = self._measure()
        if not self._started:  # the first one includes the start of the loader and of the model
            self._started = True
            return
        kept = math.exp(-elapsed / _MEMORY)
        self._seconds = kept * self._seconds + elapsed
        self._images = kept * self._images + images

    def end_evaluation(self, seconds: float) -> None:
        """Is called after an evaluation, with its duration in seconds."""
        self._measure()
        self._evaluation = (seconds, self._per_image)

    def _measure(self) -> float:
        """Returns the seconds since the last call, and sometimes measures the slowdown by other programs."""
        now = self._clock()
        elapsed = max(0.0, now - self._last)
        since = now - self._probed
        if self.seconds is not None and since >= _PROBE_INTERVAL:
            kept = math.exp(-since / _MEMORY)
            slowdown = min(max(self._probe(), 1.0), _SLOWEST)
            self.slowdown = kept * self.slowdown + (1 - kept) * slowdown
            self._probed = now
        self._last = now
        return elapsed

    def count_updates(self, images: int, interval: int) -> float:
        """Returns the number of updates that fit before the last evaluation.

        Args:
            images: Number of images per update.
            interval: Number of updates between two evaluations.
        """
        update = self._per_image * images + self._expected_evaluation / interval
        return self.for_training / max(update, 1e-9)

    def pace(self, images: int, interval: int, position: float, total: int, rest: int) -> int:
        """Returns by how many thousandths of an update the schedule must advance per update, or `STOP`.

        Args:
            images: Number of images per update.
            interval: Number of updates between two evaluations.
            position: Position of the schedule in updates.
            total: Number of updates at the end of the schedule.
            rest: Number of planned updates until the end of the run, > 0.
        """
        if self.seconds is None:
            return PLANNED
        fitting = self.count_updates(images, interval)
        if fitting < 1:
            return STOP
        return max(1, min(STOP - 1, math.ceil(PLANNED * (total - position) / min(fitting, rest))))

    def end_epoch(self, images: int, world: int, *, evaluates: bool) -> None:
        """Decides after an epoch whether another update would end in time. All ranks must call it.

        Args:
            images: Number of images per update.
            world: World size.
            evaluates: Whether an evaluation follows in any case.
        """
        if self.seconds is None or self.reached:
            return
        left = self.for_training - self._per_image * images
        if evaluates:
            left -= self._expected_evaluation
        self.reached = float(all_reduce(np.array([-left]), world, maximum=True)[0]) > 0


def _measure_slowdown() -> float:
    """Returns the duration of a loop, divided by its processor time."""
    start = time.perf_counter()
    processor = time.thread_time()
    while time.thread_time() - processor < _PROBE_SECONDS:
        pass
    return (time.perf_counter() - start) / _PROBE_SECONDS
