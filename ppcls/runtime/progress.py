"""Progress of a process in shared memory, which a watchdog can read even if the process is stuck."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LAYOUT = struct.Struct("<Qqqq?80s")
SIZE = mmap.PAGESIZE


@dataclass(frozen=True)
class ProgressSnapshot:
    """Progress of a process at one moment.

    Attributes:
        count: Number of reports so far. It does not change while the process is stuck.
        epoch: Epoch, from 1; 0 before training.
        batch: Batch of the epoch, from 1.
        update: Number of finished optimizer updates.
        slow: Whether the current activity may take longer than a step.
        activity: Description of the current activity.
    """

    count: int
    epoch: int
    batch: int
    update: int
    slow: bool
    activity: str

    def __str__(self) -> str:
        position = f"epoch {self.epoch}, batch {self.batch}, update {self.update}: " if self.epoch else ""
        return position + self.activity


class Progress:
    """Writes the current activity of this process to shared memory. A report takes less than a microsecond.

    Until the first step is finished, every activity counts as slow, because Paddle searches kernels and DALI
    builds pipelines.

    Args:
        memory: Descriptor of a file of `SIZE` bytes that is shared with the watchdog; None without a
            watchdog.

    Attributes:
        evaluated: Whether a batch was evaluated. The first evaluated batch may be slow, like the first step.
    """

    def __init__(self, memory: int | None = None) -> None:
        self._memory = mmap.mmap(-1 if memory is None else memory, SIZE)
        self._count = 0
        self._position = (0, 0, 0)
        self._stepped = False
        self.evaluated = False
        self._current = ("", False)
        self.report("starting")

    def report(self, activity: str, *, slow: bool = False) -> None:
        """Reports a new activity.

        Args:
            activity: Description, which is cut to 80 bytes.
            slow: Whether the activity may take longer than a step.
        """
        self._count += 1
        self._current = (activity, slow)
        slow = slow or not self._stepped
        _LAYOUT.pack_into(self._memory, 0, self._count, *self._position, slow, activity.encode())

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Reports an activity during the block, and then the previous activity again.

        The activity counts as slow if the previous activity does.
        """
        previous, slow = self._current
        self.report(activity, slow=slow)
        try:
            yield
        finally:
            self.report(previous, slow=slow)

    def set_position(self, epoch: int, batch: int, update: int) -> None:
        """Sets the position in the run that later reports contain; see `ProgressSnapshot`."""
        self._position = (epoch, batch, update)

    def mark_first_step(self) -> None:
        """Marks the first step as finished. Until this call, all activities count as slow."""
        self._stepped = True


def read_progress(memory: int) -> ProgressSnapshot:
    """Returns the latest report of a process.

    Args:
        memory: File descriptor of the memory that the process shares.
    """
    count, epoch, batch, update, slow, activity = _LAYOUT.unpack(os.pread(memory, _LAYOUT.size, 0))
    text = activity.rstrip(b"\0").decode(errors="replace")
    return ProgressSnapshot(count, epoch, batch, update, slow, text)
