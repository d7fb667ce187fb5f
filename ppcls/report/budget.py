"""How much of a run's time reports may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SHARE, FREE = 0.01, 2.0  # of the run's time, and seconds


class Budget:
    """Keeps account of what one reporter takes: at most two seconds and a hundredth of the run's time.

    The one that passes the limit is still done, so whoever asks first may take more by its last turn.
    """

    def __init__(self) -> None:
        self._began, self._spent = time.monotonic(), 0.0

    @property
    def left(self) -> bool:
        """Whether there is time for another turn."""
        return self._spent <= FREE + SHARE * (time.monotonic() - self._began)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Counts the time of the block, also where it raises."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - began
