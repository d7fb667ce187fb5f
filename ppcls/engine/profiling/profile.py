"""``--profile START:STOP``: a trace of some steps, and a table of where their time went.

Whatever the timed phases would overlap shows as the difference to an ordinary step, which is measured before
the window.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import paddle
from paddle.profiler import Profiler, ProfilerTarget, RecordEvent

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import Phase, ProfileWindow, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step
from ppcls.engine.profiling.phase_timer import PhaseTimer
from ppcls.errors import UserError
from ppcls.files import atomic_path, write_text
from ppcls.report.step_times import StepTable, as_json, as_text, summarize
from ppcls.runtime.start import Runtime

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


class Profile(StepHooks):
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
        self, window: ProfileWindow, runtime: Runtime, images: int, folder: Path, tell: Callable[[str], None]
    ) -> None:
        self._window, self._runtime, self._images = window, runtime, images
        self._folder, self._tell = folder, tell
        self._no_trace = why_no_trace(runtime)
        self._trace = Trace(runtime.device == "gpu") if self._no_trace is None else None
        # As many ordinary steps as are profiled, if there are so many before them.
        self._reference = max(_WARM_UP, window.start - (window.stop - window.start))
        self._step, self._began, self._ordinary = 0, 0.0, 0.0
        self._timer = PhaseTimer(runtime, self._mark)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: can't make this folder for the profile: {error.strerror}") from None

    def wrap(self, step: Step) -> Step:
        """Returns ``step``, replaced by eager steps until the window ends.

        The steps before the window are eager too, so that they can be compared with those in it.
        """

        def profiled_step(state: TrainState, batch: Batch, hooks: StepHooks) -> paddle.Tensor:
            if self._step >= self._window.stop:
                return step(state, batch, hooks)
            return self._timer.eager_step(state, batch, hooks)

        return profiled_step

    @property
    def _profiling(self) -> bool:
        return self._window.start <= self._step < self._window.stop

    def __call__(self, phase: Phase) -> AbstractContextManager[None]:
        """Times a phase of a profiled step."""
        return self._timer(phase) if self._profiling else nullcontext()

    def _mark(self, phase: Phase) -> AbstractContextManager[None]:
        """Shows a phase in the trace."""
        marked: AbstractContextManager[None] = nullcontext()
        if self._trace is not None:
            marked = RecordEvent(f"phase: {phase}")
        return marked

    def begin_batch(self) -> None:
        """Begins a step where one is due."""
        if self._profiling:
            if self._trace is not None and self._timer.fresh and self._timer.steps == 0:
                self._trace.close()
                self._trace.start()
            self._timer.begin_batch()
        elif self._step == self._reference:
            self._runtime.synchronize()
        self._began = time.perf_counter()

    def end_batch(self, update: bool) -> None:
        """Takes a batch's time, and ends the step where it ends."""
        if self._profiling:
            self._timer.end_batch(update)
        elif self._reference <= self._step < self._window.start:
            if update and self._step == self._window.start - 1:
                self._runtime.synchronize()
            self._ordinary += time.perf_counter() - self._began
        self._step += update
        if update and self._step == self._window.stop:
            self._finish()

    def close(self) -> None:
        """Ends the trace where the run ends within the window."""
        if self._trace is not None:
            self._trace.close()

    def _finish(self) -> None:
        """Writes trace and table, and tells of them; training goes on also where that fails."""
        trace = self._folder / f"trace_rank{self._runtime.rank}.json"
        before = self._window.start - self._reference
        ordinary = self._ordinary / before if before > 0 else None
        times = self._timer.measured(self._window.start, self._images, ordinary)
        try:
            if self._trace is not None:
                self._trace.save(trace)
            if self._runtime.is_main:
                self._write(summarize(times), trace)
        except OSError as error:
            lost = f"{self._folder}: can't write the profile: {error.strerror or error}; training goes on"
            if self._runtime.is_main:
                self._tell(lost)
            else:
                print(lost, file=sys.stderr)  # noqa: T201

    def _write(self, table: StepTable, trace: Path) -> None:
        if self._no_trace is None:
            ranks = "; a file a rank" if self._runtime.world_size > 1 else ""
            traced = f"trace: {trace} (chrome://tracing or ui.perfetto.dev{ranks})\n"
        else:
            traced = f"no trace: {self._no_trace}\n"
        text = as_text(table) + traced
        write_text(self._folder / "steps.txt", text)
        write_text(self._folder / "steps.json", as_json(table))
        for line in text.splitlines():
            self._tell(line)


def build_profile(
    window: ProfileWindow, state: TrainState, epochs: int, output_dir: Path, tell: Callable[[str], None]
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
