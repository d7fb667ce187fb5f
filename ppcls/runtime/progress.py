"""The progress of a process, in shared memory: a watchdog reads it whatever the process is stuck in."""

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
    """Progress at one moment.

    Attributes:
        count: Number of reports so far; it does not change while the process is stuck.
        epoch: Epoch, from 1; 0 before training.
        batch: Batch of the epoch, from 1.
        update: Optimizer updates done.
        slow: Whether the current activity may take longer than a step.
        activity: What the process is doing.
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
    """Reports what this process is doing, in less than a microsecond, whether or not a watchdog reads it.

    Every activity counts as slow until the first step is done: Paddle searches kernels, DALI builds
    pipelines.

    Args:
        memory: Descriptor of a file of `SIZE` bytes shared with the watchdog; None for no watchdog.

    Attributes:
        evaluated: Whether a batch has been evaluated; the first one may be slow, as the first step is.
    """

    def __init__(self, memory: int | None = None) -> None:
        self._memory = mmap.mmap(-1 if memory is None else memory, SIZE)
        self._count, self._position, self._stepped = 0, (0, 0, 0), False
        self.evaluated = False
        self._current = ("", False)
        self.report("starting")

    def report(self, activity: str, *, slow: bool = False) -> None:
        """Reports a new activity.

        Args:
            activity: Description, cut off after 80 bytes.
            slow: Whether it may take longer than a step.
        """
        self._count += 1
        self._current = (activity, slow)
        slow = slow or not self._stepped
        _LAYOUT.pack_into(self._memory, 0, self._count, *self._position, slow, activity.encode())

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Reports an activity for the block, then the previous activity again; both are equally slow."""
        previous, slow = self._current
        self.report(activity, slow=slow)
        try:
            yield
        finally:
            self.report(previous, slow=slow)

    def set_position(self, epoch: int, batch: int, update: int) -> None:
        """Sets the position in the run for the next reports; see `ProgressSnapshot`."""
        self._position = (epoch, batch, update)

    def mark_first_step(self) -> None:
        """Marks the first step as done. Until then, all activities count as slow."""
        self._stepped = True


def read_progress(memory: int) -> ProgressSnapshot:
    """Returns the latest report of the process that shares ``memory``, a file descriptor."""
    count, epoch, batch, update, slow, activity = _LAYOUT.unpack(os.pread(memory, _LAYOUT.size, 0))
    text = activity.rstrip(b"\0").decode(errors="replace")
    return ProgressSnapshot(count, epoch, batch, update, slow, text)
