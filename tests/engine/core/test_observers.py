"""Observers: the order of their calls, and what each of ppcls's observers does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from recording import Notes
from small_net import MemoryLoader, make_state

from ppcls.engine.core.hooks import Phase, RunHook
from ppcls.engine.core.observers import (
    MemoryObserver,
    Observers,
    OutcomeKeeper,
    ProgressObserver,
    StepObserver,
)
from ppcls.engine.loop import Run, fit
from ppcls.recipe.settings import Global
from ppcls.report.record import EvalRecord, Outcomes
from ppcls.runtime.progress import Progress


def make_run(*observers: RunHook, messages: list[str] | None = None) -> Run:
    notes = Notes(messages)
    state = make_state(loader=MemoryLoader(size=8, batch_size=4))
    return Run(state, Global(epochs=2), notes, None, notes, Observers(observers))  # type: ignore[arg-type]


def test_run_is_frozen() -> None:
    run = make_run()
    with pytest.raises(FrozenInstanceError):
        run.observers = Observers()  # type: ignore[misc]


class Named(StepObserver):
    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:  # type: ignore[override]
        self._calls.append(f"{self._name} enters {phase}")
        yield
        self._calls.append(f"{self._name} leaves {phase}")


def test_phases_of_several_observers_are_nested() -> None:
    calls: list[str] = []
    observers = Observers([Named("a", calls), RunHook(), StepObserver(), Named("b", calls)])
    with observers("forward"):
        calls.append("runs")
    assert calls == [
        *("a enters forward", "b enters forward", "runs"),
        *("b leaves forward", "a leaves forward"),
    ]


def test_hook_may_have_attributes_named_like_methods_of_step_observers() -> None:
    class Hook(RunHook):
        phase = "warm-up"
        begin_batch = end_batch = on_batch = None

    fit(make_run(Hook()))


def test_only_observers_of_checkpoints_prevent_saving_in_the_background() -> None:
    class OfUpdates(RunHook):
        def on_update(self, run: Run) -> None: ...

    class OfCheckpoints(RunHook):
        def on_checkpoint(self, run: Run, names: tuple[str, ...]) -> None: ...

    assert not Observers([OfUpdates(), ProgressObserver(Progress(), 1), OutcomeKeeper()]).see_checkpoints
    assert Observers([OfUpdates(), OfCheckpoints()]).see_checkpoints


def record(best: bool, outcomes: Outcomes | None) -> EvalRecord:
    return EvalRecord(1, 1, 0.5, {"top1": 0.5}, 1, 1.0, best, outcomes)


def make_outcomes() -> Outcomes:
    return Outcomes(None, np.zeros([2, 2], np.int64), ())


def test_outcomes_of_the_best_evaluation_are_kept() -> None:
    first, best, worse = make_outcomes(), make_outcomes(), make_outcomes()
    keeper = OutcomeKeeper()
    run = make_run(keeper)
    for item, expected in (
        (record(False, first), first),
        (record(True, best), best),
        (record(False, worse), best),
    ):
        run.observers.on_evaluation(run, item)
        assert keeper.outcomes is expected


def test_memory_is_logged_once_at_the_end_of_the_first_epoch_without_evaluations() -> None:
    messages: list[str] = []
    updates: list[int] = []

    class Counter(RunHook):
        def on_update(self, run: Run) -> None:
            updates.append(run.state.update)

    fit(make_run(Counter(), MemoryObserver(lambda: f"memory after {updates}", False), messages=messages))
    assert messages == ["memory after [1, 2]"]
    assert updates == [1, 2, 3, 4]


def test_memory_is_logged_once_after_the_first_evaluation() -> None:
    messages: list[str] = []
    run = make_run(MemoryObserver(lambda: "memory", True), messages=messages)
    run.observers.on_update(run)
    assert messages == []
    for _ in range(2):
        run.observers.on_evaluation(run, record(False, None))
    assert messages == ["memory"]


class RecordingProgress(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.reports: list[str] = []

    def report(self, activity: str, *, slow: bool = False) -> None:
        super().report(activity, slow=slow)
        if hasattr(self, "reports"):
            self.reports.append(activity)


@pytest.mark.parametrize(("world_size", "backward"), [(1, "backward"), (2, "backward and all-reduce")])
def test_phases_are_reported(world_size: int, backward: str) -> None:
    progress = RecordingProgress()
    hooks = Observers([ProgressObserver(progress, world_size)])
    for phase in ("data wait", "forward", "backward", "optimizer"):
        with hooks(phase):  # type: ignore[arg-type]
            pass
    assert progress.reports == ["waiting for data", "forward", backward, "optimizer"]
