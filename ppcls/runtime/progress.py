"""Where a process is in its run, in memory that its watcher sees too, whatever the process is stuck in."""

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
class Seen:
    """What a watcher reads.

    Attributes:
        count: Of things told so far; a process that is stuck leaves it as it is.
        epoch: From 1; 0 before training.
        batch: Of the epoch, from 1.
        update: Optimizer updates done.
        patient: Whether what goes on now may take longer than a step.
        doing: What goes on now.
    """

    count: int
    epoch: int
    batch: int
    update: int
    patient: bool
    doing: str

    def __str__(self) -> str:
        place = f"epoch {self.epoch}, batch {self.batch}, update {self.update}: " if self.epoch else ""
        return place + self.doing


class Progress:
    """Tells what a process does. It costs less than a microsecond, and nobody need listen.

    Until the first step is done, everything may take longer: kernels are searched, pipelines built.

    Args:
        memory: Descriptor of a file of `SIZE` bytes that the watcher has, too; None where nobody watches.

    Attributes:
        evaluated: Whether a batch was evaluated; the first may take longer, as the first step may.
    """

    def __init__(self, memory: int | None = None) -> None:
        self._board = mmap.mmap(-1 if memory is None else memory, SIZE)
        self._count, self._place, self._stepped = 0, (0, 0, 0), False
        self.evaluated = False
        self._told = ("", False)
        self.tell("starting")

    def tell(self, doing: str, *, patient: bool = False) -> None:
        """Notes that the process has come to something new.

        Args:
            doing: What; the rest beyond 80 bytes is lost.
            patient: Whether it may well take longer than a step does.
        """
        self._count += 1
        self._told = (doing, patient)
        patient = patient or not self._stepped
        _LAYOUT.pack_into(self._board, 0, self._count, *self._place, patient, doing.encode())

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Tells ``doing`` while the context lasts, and afterwards again what went on before.

        Args:
            doing: What; it may take as long as what it interrupts.
        """
        before, patient = self._told
        self.tell(doing, patient=patient)
        try:
            yield
        finally:
            self.tell(before, patient=patient)

    def place(self, epoch: int, batch: int, update: int) -> None:
        """Notes the place in the run, for what is told from now on; see `Seen`."""
        self._place = (epoch, batch, update)

    def stepped(self) -> None:
        """Notes that a step of training is done."""
        self._stepped = True


def read(memory: int) -> Seen:
    """Reads what the process that shares ``memory`` has told last."""
    count, epoch, batch, update, patient, doing = _LAYOUT.unpack(os.pread(memory, _LAYOUT.size, 0))
    return Seen(count, epoch, batch, update, patient, doing.rstrip(b"\0").decode(errors="replace"))
