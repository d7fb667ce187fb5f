"""``--profile START:STOP``: a trace of some steps, and a table of where their time went.

A GPU works on while the host goes ahead, so a phase's time on the host says nothing. In profiled steps the
host waits for Paddle's GPU before and after each phase; the times are then the device's, and whatever the
phases would overlap shows as the difference to an ordinary step, which is measured before the window.

Ranks exchange gradients during backward. In every other profiled step they do so after it, which takes the
exchange's time alone and backward's time without it: the difference to backward with it is what it costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.profiler import Profiler, ProfilerTarget, RecordEvent

from ppcls.engine.phases import Phase, Phases, Window
from ppcls.engine.state import TrainState
from ppcls.errors import UserError
from ppcls.files import atomic_path, write_text
from ppcls.report.step_times import COLUMNS, StepTable, StepTimes, as_json, as_text, summarize
from ppcls.runtime import Runtime

_WARM_UP = 2  # steps never counted as ordinary: the first ones build and tune


class Trace:
    """Paddle's profiler, from `start` to `save`.

    Args:
        on_gpu: Whether to trace a GPU's kernels too.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._targets = [ProfilerTarget.CPU, *([ProfilerTarget.GPU] if on_gpu else [])]
        self._profiler: Profiler | None = None

    def start(self) -> None:
        """Begins to trace."""
        self._profiler = Profiler(targets=self._targets, on_trace_ready=lambda _: None)
        self._profiler.start()

    def save(self, path: Path) -> None:
        """Ends the trace and writes it, for chrome://tracing.

        Raises:
            OSError: It can't be written.
        """
        assert self._profiler is not None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        with atomic_path(path) as temporary:
            profiler.export(str(temporary), format="json")

    def close(self) -> None:
        """Ends the trace, written or not: a process has but one profiler at a time."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None


def why_no_trace(runtime: Runtime) -> str | None:
    """Returns why Paddle can't trace here, None where it can: a GPU build of 2.6.2 needs a driver for it."""
    if runtime.device == "gpu" or not paddle.is_compiled_with_cuda():
        return None
    if paddle.device.cuda.device_count() > 0:
        return None
    return (
        f"the profiler of Paddle {paddle.__version__} built for GPUs needs an NVIDIA driver, "
        "also for a run on the CPU"
    )


class Profile(Phases):
    """Measures the steps of a window, traces them, and writes both into a folder.

    Args:
        window: Which steps.
        runtime: Rank and device.
        images: Of a full step, over all ranks.
        folder: For the table and each rank's trace; made.
        tell: Takes rank 0's lines for people.

    Raises:
        UserError: The folder can't be made.
    """

    def __init__(
        self, window: Window, runtime: Runtime, images: int, folder: Path, tell: Callable[[str], None]
    ) -> None:
        self._window, self._runtime, self._images = window, runtime, images
        self._folder, self._tell = folder, tell
        self._no_trace = why_no_trace(runtime)
        self._trace = Trace(runtime.device == "gpu") if self._no_trace is None else None
        # As many ordinary steps as are profiled, if there are so many before them.
        self._reference = max(_WARM_UP, window.start - (window.stop - window.start))
        self._step, self._began, self._fresh = 0, 0.0, True
        self._ordinary = 0.0
        self._times = np.zeros(len(COLUMNS))
        self._seconds: list[NDArray[np.float64]] = []
        self._after: list[bool] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: can't make this folder for the profile: {error.strerror}") from None

    @property
    def _profiling(self) -> bool:
        return self._window.start <= self._step < self._window.stop

    def __call__(self, phase: Phase) -> AbstractContextManager[None]:
        """Times a phase of a profiled step."""
        return self._timed(phase) if self._profiling else nullcontext()

    @contextmanager
    def _timed(self, phase: Phase) -> Iterator[None]:
        self._runtime.synchronize()
        began = time.perf_counter()
        with RecordEvent(f"phase: {phase}") if self._trace is not None else nullcontext():
            yield
            self._runtime.synchronize()
        self._times[COLUMNS.index(phase)] += time.perf_counter() - began

    def begin_batch(self) -> None:
        """Begins a step where one is due."""
        if self._step in (self._reference, self._window.start):
            self._runtime.synchronize()
        if self._profiling and self._fresh:
            self._begin_step()
        self._began = time.perf_counter()

    def _begin_step(self) -> None:
        """Begins a step; also again, where the epoch had no batch left for it."""
        if self._trace is not None and not self._seconds and self._step == self._window.start:
            self._trace.close()
            self._trace.start()
        self._times = np.zeros(len(COLUMNS))
        self.exchange_after = self._runtime.world > 1 and (self._step - self._window.start) % 2 == 1

    def end_batch(self, update: bool) -> None:
        """Takes a batch's time, and ends the step where it ends."""
        if self._profiling:
            self._runtime.synchronize()
            taken = time.perf_counter() - self._began
            self._times[-1] += taken
            if update:
                self._times[-1] -= self._times[:-1].sum()
                self._seconds.append(self._times)
                self._after.append(self.exchange_after)
        elif self._reference <= self._step < self._window.start:
            if update and self._step == self._window.start - 1:
                self._runtime.synchronize()
            self._ordinary += time.perf_counter() - self._began
        self._fresh = update
        self._step += update
        if update and self._step == self._window.stop:
            self._finish()

    def close(self) -> None:
        """Ends the trace where the run ends within the window."""
        if self._trace is not None:
            self._trace.close()

    def _finish(self) -> None:
        """Writes trace and table, and tells of them; training goes on also where that fails."""
        self.exchange_after = False
        trace = self._folder / f"trace_rank{self._runtime.rank}.json"
        seconds = self._of_all_ranks(np.stack(self._seconds))
        try:
            if self._trace is not None:
                self._trace.save(trace)
            if self._runtime.is_main:
                self._write(summarize(self._measured(seconds)), trace)
        except OSError as error:
            lost = f"{self._folder}: can't write the profile: {error.strerror or error}; training goes on"
            if self._runtime.is_main:
                self._tell(lost)
            else:
                print(lost, file=sys.stderr)  # noqa: T201

    def _measured(self, seconds: NDArray[np.float64]) -> StepTimes:
        before = self._window.start - self._reference
        return StepTimes(
            seconds=seconds,
            after=np.array(self._after),
            first=self._window.start,
            images=self._images,
            on_gpu=self._runtime.device == "gpu",
            ordinary=self._ordinary / before if before > 0 else None,
        )

    def _of_all_ranks(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns [ranks, steps, 6] from [steps, 6] of this rank."""
        if self._runtime.world == 1:
            return seconds[None]
        gathered: list[paddle.Tensor] = []
        paddle.distributed.all_gather(gathered, paddle.to_tensor(seconds))
        return np.stack([np.asarray(each.numpy()) for each in gathered])

    def _write(self, table: StepTable, trace: Path) -> None:
        if self._no_trace is None:
            ranks = "; a file a rank" if self._runtime.world > 1 else ""
            traced = f"trace: {trace} (chrome://tracing or ui.perfetto.dev{ranks})\n"
        else:
            traced = f"no trace: {self._no_trace}\n"
        text = as_text(table) + traced
        write_text(self._folder / "steps.txt", text)
        write_text(self._folder / "steps.json", as_json(table))
        for line in text.splitlines():
            self._tell(line)


def build_profile(
    window: Window, state: TrainState, epochs: int, output_dir: Path, tell: Callable[[str], None]
) -> Profile:
    """Returns what measures a window of a run from its present position on.

    Args:
        window: Which steps.
        state: The run, resumed where it is.
        epochs: Of the whole run.
        output_dir: Folder of the run; the profile goes to ``profile/START-STOP`` in it, counted from the
            very first step of the run.
        tell: Takes rank 0's lines for people.

    Raises:
        UserError: The run has fewer steps.
    """
    done = state.epoch * state.updates_per_epoch + state.updates_of_epoch
    left = epochs * state.updates_per_epoch - done
    if window.stop > left:
        raise UserError(
            f"--profile {window}: {left} steps are left to train ({epochs} epochs of "
            f"{state.updates_per_epoch}, {done} done); expected at most {max(0, left - 1)}:{left}"
        )
    order = state.loader.order
    folder = output_dir / "profile" / f"{done + window.start}-{done + window.stop}"
    return Profile(window, state.runtime, order.global_batch * order.accumulate, folder, tell)
