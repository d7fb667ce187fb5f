"""What the step and the loop tell, and the window's text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from recording import Notes
from small_net import MemoryLoader, make_state

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import NO_HOOKS, Phase, ProfileWindow, read_profile_window
from ppcls.engine.core.observers import Observers, StepObserver
from ppcls.engine.core.state import TrainState
from ppcls.engine.loop import Run, fit
from ppcls.errors import UserError
from ppcls.recipe.settings import Global


class Heard(StepObserver):
    """Records the calls of an observer."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:  # type: ignore[override]
        self.events.append(phase)
        yield
        self.events.append("")

    def begin_batch(self) -> None:
        self.events.append("begin")

    def on_batch(self, state: TrainState, batch: Batch) -> None:
        self.events.append(f"batch of {batch.valid}")

    def end_batch(self, run: Run, update: bool) -> None:
        self.events.append("end of step" if update else "end of batch")


def hear(accumulate: int) -> list[str]:
    heard = Heard()
    state = make_state(loader=MemoryLoader(size=8, batch_size=4, accumulate=accumulate))
    fit(Run(state, Global(epochs=1), Notes(), observers=Observers([heard])))  # type: ignore[arg-type]
    return heard.events


def test_hooks_are_called_for_each_phase_of_a_step() -> None:
    batch = ["begin", "data wait", "", "batch of 4", "forward", "", "backward", ""]
    step = [*batch, "optimizer", "", "end of step"]
    assert hear(accumulate=1) == [*step, *step, "begin", "data wait", ""]
    assert hear(accumulate=2) == [*batch, "end of batch", *step, "begin", "data wait", ""]


def test_no_hooks_share_one_context() -> None:
    assert NO_HOOKS("forward") is NO_HOOKS("backward")


def test_read_profile_window_valid_text() -> None:
    assert read_profile_window("10:20") == ProfileWindow(10, 20)
    assert read_profile_window("0:1") == ProfileWindow(0, 1)


@pytest.mark.parametrize(
    "text", ["", "5", "5:", ":5", "5:5", "6:5", "-1:5", "1.0:2", "a:b", "1:2:3", "1: 2", "٣:٤"]
)
def test_read_profile_window_invalid_text_is_an_error(text: str) -> None:
    with pytest.raises(
        UserError, match="--profile: expected START:STOP, two whole numbers with START < STOP"
    ):
        read_profile_window(text)
