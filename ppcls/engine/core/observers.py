"""Observers of a run: the watchdog's progress, the profile, images for the report, and users' hooks.

A `Run` has one list of observers. An observer never changes the training, so the order of the list only
matters for the log. Users' hooks have the methods of `RunHook`. Observers of ppcls are `StepObserver`, which
also see the phases of each step. These methods are not part of `RunHook`, because a user's hook may have
attributes of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from typing_extensions import override

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import Phase, RunHook, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.report.record import EvalRecord, LabelOutcomes, Outcomes
from ppcls.runtime.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppcls.engine.loop import Run

_NO_CONTEXT = nullcontext()


class StepObserver(RunHook):
    """Base class of observers that also see each step. Its methods do nothing."""

    def phase(self, phase: Phase) -> AbstractContextManager[None] | None:
        """Called before each phase of a step.

        Returns:
            A context in which the phase runs; None if the observer needs none.
        """

    def begin_batch(self) -> None:
        """Called before the training loop waits for the next batch."""

    def on_batch(self, state: TrainState, batch: Batch) -> None:
        """Called with each batch before the step trains on it."""

    def end_batch(self, run: Run, update: bool) -> None:
        """Called after a step, and after the logging and saving that follow the step.

        Args:
            update: Whether the step ended with an update.
        """


class Observers(StepHooks):
    """Calls all observers of a run, in order.

    Args:
        observers: Observers of ppcls, and users' hooks.
    """

    def __init__(self, observers: Sequence[RunHook] = ()) -> None:
        self._all = tuple(observers)
        self._of_steps = tuple(observer for observer in observers if isinstance(observer, StepObserver))

    @property
    def see_checkpoints(self) -> bool:
        """Whether an observer is called after each checkpoint."""
        return any(type(observer).on_checkpoint is not RunHook.on_checkpoint for observer in self._all)

    def __call__(self, phase: Phase) -> AbstractContextManager[None]:
        """Returns the context in which one phase of the current step runs."""
        contexts = [observer.phase(phase) for observer in self._of_steps]
        needed = [context for context in contexts if context is not None]
        if not needed:
            return _NO_CONTEXT
        return needed[0] if len(needed) == 1 else _enter_all(needed)

    def begin_batch(self) -> None:
        """See `StepObserver`."""
        for observer in self._of_steps:
            observer.begin_batch()

    def on_batch(self, state: TrainState, batch: Batch) -> None:
        """See `StepObserver`."""
        for observer in self._of_steps:
            observer.on_batch(state, batch)

    def end_batch(self, run: Run, update: bool) -> None:
        """See `StepObserver`."""
        for observer in self._of_steps:
            observer.end_batch(run, update)

    def on_update(self, run: Run) -> None:
        """See `RunHook`."""
        for observer in self._all:
            observer.on_update(run)

    def on_evaluation(self, run: Run, record: EvalRecord) -> None:
        """See `RunHook`."""
        for observer in self._all:
            observer.on_evaluation(run, record)

    def on_checkpoint(self, run: Run, names: tuple[str, ...]) -> None:
        """See `RunHook`."""
        for observer in self._all:
            observer.on_checkpoint(run, names)

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """See `RunHook`."""
        for observer in self._all:
            observer.on_end(run, error)


@contextmanager
def _enter_all(contexts: Sequence[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


class ProgressObserver(StepObserver):
    """Reports the current phase to the watchdog.

    Args:
        progress: Progress of this process, which the watchdog reads.
        world: Number of ranks.
    """

    def __init__(self, progress: Progress, world: int) -> None:
        self._progress = progress
        self._descriptions = {"data wait": "waiting for data"}
        if world > 1:
            self._descriptions["backward"] = "backward and all-reduce"

    @override
    def phase(self, phase: Phase) -> None:
        """Reports the phase."""
        self._progress.report(self._descriptions.get(phase, phase))

    @override
    def end_batch(self, run: Run, update: bool) -> None:
        """Reports a finished step."""
        self._progress.mark_first_step()


class OutcomeKeeper(RunHook):
    """Keeps the results per image of the best evaluation, or of the first one while none is the best.

    Attributes:
        outcomes: The results; None before the first evaluation, or if they are not collected.
        best: Whether the results are those of the best evaluation. If not, that was before a resume.
    """

    def __init__(self) -> None:
        self.outcomes: Outcomes | LabelOutcomes | None = None
        self.best = False

    @override
    def on_evaluation(self, run: Run, record: EvalRecord) -> None:
        """Keeps the results if they are better."""
        if record.best or self.outcomes is None:
            self.outcomes = record.outcomes
            self.best = record.best


class MemoryObserver(RunHook):
    """Logs one line about memory use, when all pipelines of DALI have run.

    This is after the first evaluation, or, in a run without evaluations, at the end of the first epoch.

    Args:
        measure: Function that returns the line.
        evaluates: Whether the run has evaluations.
    """

    def __init__(self, measure: Callable[[], str], evaluates: bool) -> None:
        self._measure = measure
        self._evaluates = evaluates
        self._logged = False

    @override
    def on_update(self, run: Run) -> None:
        """Logs the line at the end of an epoch if the run has no evaluations."""
        if not self._evaluates and run.state.updates_of_epoch % run.state.updates_per_epoch == 0:
            self._log(run)

    @override
    def on_evaluation(self, run: Run, record: EvalRecord) -> None:
        """Logs the line."""
        self._log(run)

    def _log(self, run: Run) -> None:
        if not self._logged:
            self._logged = True
            run.log(self._measure())
