"""``--profile START:STOP``: writes a trace of some updates, and a table of the time per phase.

Timed phases do not overlap, which makes updates slower. Updates before the window are measured without timed
phases, for comparison.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import paddle
from paddle.profiler import Profiler, ProfilerTarget, RecordEvent
from typing_extensions import override

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import Phase, ProfileWindow, StepHooks
from ppcls.engine.core.observers import StepObserver
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step
from ppcls.engine.profiling.phase_timer import PhaseTimer
from ppcls.errors import UserError, counted
from ppcls.files import atomic_path, print_error, write_text
from ppcls.report.step_times import StepTable, as_json, as_text, summarize
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:
    from ppcls.engine.loop import Run

_WARM_UP = 2  # number of first updates that are not measured, because they build kernels


class Trace:
    """Records a trace with Paddle's profiler, from `start` to `save`.

    Args:
        on_gpu: Whether to trace GPU kernels too.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._targets = [ProfilerTarget.CPU, *([ProfilerTarget.GPU] if on_gpu else [])]
        self._profiler: Profiler | None = None

    def start(self) -> None:
        """Starts recording."""
        self._profiler = Profiler(targets=self._targets, on_trace_ready=lambda _: None)
        self._profiler.start()

    def save(self, path: Path) -> None:
        """Stops recording, and writes the trace in the format of chrome://tracing.

        Raises:
            OSError: The file can't be written.
        """
        assert self._profiler is not None
        profiler = self._profiler
        self._profiler = None
        profiler.stop()
        with atomic_path(path) as temporary:
            profiler.export(str(temporary), format="json")

    def close(self) -> None:
        """Stops recording and discards the trace, because a process can have only one profiler."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None


def why_no_trace(runtime: Runtime) -> str | None:
    """Returns why Paddle's profiler does not work on this machine; None if it works.

    In GPU builds of Paddle 2.6.2, the profiler needs an NVIDIA driver.
    """
    if runtime.device == "gpu" or not paddle.is_compiled_with_cuda():
        return None
    if paddle.device.cuda.device_count() > 0:
        return None
    return (
        f"the profiler of Paddle {paddle.__version__} built for GPUs needs an NVIDIA driver, "
        "also for a run on the CPU"
    )


class Profile(StepObserver):
    """Times and traces the updates of a window, and writes the times and the trace to a folder.

    Args:
        window: Updates to profile.
        images: Number of images of a full update over all ranks.
        folder: Folder for the table and the traces of all ranks. It is created if it does not exist.

    Raises:
        UserError: The folder can't be created.
    """

    def __init__(self, window: ProfileWindow, runtime: Runtime, images: int, folder: Path) -> None:
        self._window = window
        self._runtime = runtime
        self._images = images
        self._folder = folder
        self._no_trace = why_no_trace(runtime)
        self._trace = Trace(runtime.device == "gpu") if self._no_trace is None else None
        # First update of the comparison, which has as many updates as the window if enough precede it.
        self._reference = max(_WARM_UP, window.start - (window.stop - window.start))
        self._step = 0
        self._start = 0.0
        self._ordinary = 0.0
        self._timer = PhaseTimer(runtime, self._mark)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: can't create the folder of the profile: {error.strerror}") from None

    def choose_step(self, step: Step) -> Step:
        """Returns a step that is eager until the end of the window, and equals ``step`` after it.

        The steps before the window are eager too, so that their times can be compared with the window.
        """

        def profiled_step(state: TrainState, batch: Batch, hooks: StepHooks) -> paddle.Tensor:
            if self._step >= self._window.stop:
                return step(state, batch, hooks)
            return self._timer.eager_step(state, batch, hooks)

        return profiled_step

    @property
    def _profiling(self) -> bool:
        return self._window.start <= self._step < self._window.stop

    @override
    def phase(self, phase: Phase) -> AbstractContextManager[None] | None:
        """Returns a context that times a phase if the current update is in the window."""
        return self._timer(phase) if self._profiling else None

    def _mark(self, phase: Phase) -> AbstractContextManager[None]:
        """Returns a context that marks a phase in the trace."""
        marked: AbstractContextManager[None] = nullcontext()
        if self._trace is not None:
            marked = RecordEvent(f"phase: {phase}")
        return marked

    @override
    def begin_batch(self) -> None:
        """Starts the time of a batch, and at the start of the window the trace."""
        if self._profiling:
            if self._trace is not None and self._timer.fresh and self._timer.steps == 0:
                self._trace.close()
                self._trace.start()
            self._timer.begin_batch()
        elif self._step == self._reference:
            self._runtime.synchronize()
        self._start = time.perf_counter()

    @override
    def end_batch(self, run: Run, update: bool) -> None:
        """Adds the time of a batch, and writes the profile after the last update of the window."""
        if self._profiling:
            self._timer.end_batch(update)
        elif self._reference <= self._step < self._window.start:
            if update and self._step == self._window.start - 1:
                self._runtime.synchronize()
            self._ordinary += time.perf_counter() - self._start
        self._step += update
        if update and self._step == self._window.stop:
            self._finish(run)

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Discards the trace if the run ends within the window."""
        if self._trace is not None:
            self._trace.close()

    def _finish(self, run: Run) -> None:
        """Writes the trace and the table, and logs the table. If writing fails, training continues."""
        trace = self._folder / f"trace_rank{self._runtime.rank}.json"
        before = self._window.start - self._reference
        ordinary = self._ordinary / before if before > 0 else None
        times = self._timer.measured(self._window.start, self._images, ordinary)
        try:
            if self._trace is not None:
                self._trace.save(trace)
            if self._runtime.is_main:
                for line in self._write(summarize(times), trace).splitlines():
                    run.log(line)
        except OSError as error:
            lost = f"{self._folder}: can't write the profile: {error.strerror or error}; training continues"
            if self._runtime.is_main:
                run.log(lost)
            else:
                print_error(lost)

    def _write(self, table: StepTable, trace: Path) -> str:
        """Writes the table, and returns it."""
        if self._no_trace is None:
            ranks = "; one file per rank" if self._runtime.world_size > 1 else ""
            traced = f"trace: {trace} (chrome://tracing or ui.perfetto.dev{ranks})\n"
        else:
            traced = f"no trace: {self._no_trace}\n"
        text = as_text(table) + traced
        write_text(self._folder / "steps.txt", text)
        write_text(self._folder / "steps.json", as_json(table))
        return text


def build_profile(window: ProfileWindow, state: TrainState, epochs: int, output_dir: Path) -> Profile:
    """Returns the observer that profiles a window of a run.

    Args:
        window: Updates to profile. Update 0 is the next update of the run.
        state: State of the run, new or resumed.
        epochs: Number of epochs of the run.
        output_dir: Output folder. The profile is written to its subfolder ``profile/START-STOP``, in which
            START and STOP count from the first update of the run, also if the run is resumed.

    Raises:
        UserError: The run has fewer updates than the window needs.
    """
    done = state.epoch * state.updates_per_epoch + state.updates_of_epoch
    left = epochs * state.updates_per_epoch - done
    if window.stop > left:
        raise UserError(
            f"--profile {window}: {counted(left, 'update is', 'updates are')} left to train "
            f"({counted(epochs, 'epoch')} of {state.updates_per_epoch}, {done} done); expected at most "
            f"{max(0, left - 1)}:{left}"
        )
    order = state.loader.order
    folder = output_dir / "profile" / f"{done + window.start}-{done + window.stop}"
    return Profile(window, state.runtime, order.global_batch * order.accumulate, folder)
