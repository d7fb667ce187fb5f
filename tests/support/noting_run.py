"""Runs linear_run.py, records its saves, the samples of each step and its memory use, and can kill itself.

``KILL=3:17`` kills the process with SIGKILL at the 17th file system call, counted from its third save on.
``DIE_AT=4`` kills rank 0 with SIGKILL after four updates. ``FAULT=1:step:5`` kills rank 1 at its fifth step,
and ``FAULT=1:reduce:5`` at its fifth sum over all ranks. ``FAULT=1:part:5`` kills rank 1 before the fifth
file of all checkpoints, and ``FAULT=1:upload:5`` before the fifth object that is written to object storage;
rank 0 writes both. These need ``STEPS=1``. With ``REST=3,9``, the process waits in these epochs before it
records its memory use, and draws charts before the run. Otherwise matplotlib would be imported by the first
drawing, one minute after the start, in any epoch.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import linear_run  # noqa: F401 - registers a model
from calls import CALLS

from ppcls.cli.train import train
from ppcls.registry import ARCHITECTURES
from ppcls.report.charts import draw_charts

NOTES = Path(os.environ["NOTES"])
RANK = os.environ.get("PADDLE_TRAINER_ID", "0")
KILL = os.environ.get("KILL")
FAULT = os.environ.get("FAULT")
_CLOSED = 8  # seconds; paddle.io's iterators keep three files and a thread a worker for five after their end


def note(kind: str, text: object) -> None:
    with (NOTES / f"{kind}.{RANK}").open("a") as file:
        file.write(f"{text}\n")


class Deadly:
    """Counts calls to the file system from a save on, and ends the process at one of them."""

    def __init__(self, save: int, call: int) -> None:
        self._saves, self._calls = save, call

    def begin_save(self) -> None:
        self._saves -= 1
        if self._saves == 0:
            for owner, name in CALLS:
                setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._calls -= 1
            if self._calls == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*arguments, **options)

        return call


class Fault:
    """Kills one rank when the run reaches a point for the n-th time.

    Args:
        rank: The rank.
        point: ``step`` or ``reduce``, which the rank itself reaches; ``part`` or ``upload``, which rank 0
            reaches.
        number: n.
    """

    def __init__(self, rank: str, point: str, number: str) -> None:
        self._rank = rank
        self._point = point
        self._left = int(number)
        self._installed = False

    def install(self) -> None:
        """Notices the points from now on. Paddle is imported meanwhile."""
        if self._installed:
            return
        self._installed = True
        import paddle

        from ppcls.files.objects import Objects
        from ppcls.weights import store

        for owner, name, point in (
            (paddle.distributed, "all_reduce", "reduce"),
            (store, "write_file", "part"),
            (store, "write_manifest", "part"),
            (Objects, "upload", "upload"),
            (Objects, "write", "upload"),
        ):
            setattr(owner, name, self._wrap(getattr(owner, name), point))

    def _wrap(self, whole: Callable[..., Any], point: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.reach(point)
            return whole(*arguments, **options)

        return call

    def reach(self, point: str) -> None:
        """Counts a point, and kills the rank of the fault there."""
        if point != self._point or (point in ("step", "reduce") and self._rank != RANK):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(int((NOTES / f"pid.{self._rank}").read_text()), signal.SIGKILL)


def build_net(class_num: int, data_format: str, input_image_channel: int) -> object:
    """Builds a small model with BatchNorm, for images of any size."""
    from small_net import Net

    return Net(class_num)


class Allocated(ctypes.Structure):
    """glibc's ``struct mallinfo2``, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def held() -> str:
    """Returns what the process holds: KiB in memory, KiB that are in use of it, open files, threads."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = Allocated
    allocated = libc.mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files, threads = (len(list(Path(f"/proc/self/{each}").iterdir())) for each in ("fd", "task"))
    resident = pages * os.sysconf("SC_PAGE_SIZE") // 1024
    return f"{resident} {(allocated.uordblks + allocated.hblkhd) // 1024} {files} {threads}"


def note_saves() -> None:
    from ppcls.engine.checkpoint.checkpoints import Checkpoints

    whole = Checkpoints.save
    deadly = Deadly(*map(int, KILL.split(":"))) if KILL else None

    def save(
        self: Checkpoints, state: Any, roles: Iterable[str], score: float | None = None, **_options: bool
    ) -> None:
        if not state.step:  # an epoch's end
            if str(state.epoch) in os.environ.get("REST", "").split(","):
                time.sleep(_CLOSED)
            note("held", held())
        note("saves", f"{state.update} begin")
        if deadly is not None:
            deadly.begin_save()
        whole(self, state, roles, score)
        note("saves", f"{state.update} done")

    Checkpoints.save = save  # type: ignore[method-assign]


def digest(model: Any) -> str:
    """Returns a digest of the bits of all weights. The statistics of BatchNorm are those of each rank."""
    found = hashlib.sha256()
    for weight in model.parameters():
        found.update(weight.numpy().tobytes())
    return found.hexdigest()


def note_steps() -> None:
    from ppcls.engine import execution

    whole, die_at = execution.train_step, int(os.environ.get("DIE_AT", "-1"))
    fault = Fault(*FAULT.split(":")) if FAULT else None

    def step(state: Any, batch: Any, *rest: Any) -> Any:
        # The loader counts a batch when it hands it over.
        samples = " ".join(map(str, batch.label.numpy()[: batch.valid].ravel().tolist()))
        note("steps", f"{state.epoch} {state.step} {state.update}: {samples}")
        if state.update == die_at and RANK == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault is not None:
            fault.install()
            fault.reach("step")
        loss = whole(state, batch, *rest)
        note("weights", f"{state.update}: {digest(state.model)}")
        return loss

    execution.train_step = step


if __name__ == "__main__":
    ARCHITECTURES.register("Net", build_net)
    note("pid", os.getpid())
    note_saves()
    if os.environ.get("STEPS"):
        note_steps()
    if os.environ.get("REST"):
        draw_charts([], NOTES / "curves.png")
    sys.exit(train())
