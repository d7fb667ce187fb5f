"""What the loop does when, on a model that trains in milliseconds."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddle import nn
from recording import Notes
from run_checkpoints import checkpoints_of
from small_net import Flat, MemoryLoader, assert_equal, content, make_state

from ppcls import files
from ppcls.data.loaders.batch import Batch
from ppcls.engine import loop
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.hooks import StepHooks
from ppcls.engine.core.loss_scale import LossScale
from ppcls.engine.core.precision import FP32
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step
from ppcls.engine.evaluation.evaluate import EvalResult
from ppcls.engine.loop import Run, fit
from ppcls.errors import SignalExit, UserError
from ppcls.recipe.schema import Config
from ppcls.recipe.settings import Global
from ppcls.report.record import EvalRecord
from ppcls.weights.manifest import read_manifest


class Scores:
    """Evaluates to given numbers, and keeps the weights that it saw."""

    def __init__(self, *scores: float, losses: tuple[float, ...] = ()) -> None:
        self._scores, self._losses = iter(scores), iter(losses)
        self.seen: list[dict[str, np.ndarray]] = []
        self.loaders: dict[str, Any] = {}
        self.batches = 1

    def __call__(self, model: nn.Layer, between: Callable[[], None]) -> EvalResult:
        self.seen.append(content(model))
        between()
        return EvalResult(next(self._losses, 1.0), {"top1": next(self._scores), "top2": 1.0}, 11, 0.5)


def run(
    state: TrainState,
    evaluator: Any = None,
    step: Step = loop.train_step,
    said: list[str] | None = None,
    **settings: Any,
) -> Notes:
    notes = Notes(said)
    fit(Run(state, Global(**settings), notes, evaluator, notes, step=step))  # type: ignore[arg-type]
    return notes


def steps(notes: Notes) -> list[tuple[int, int, int]]:
    return [(each.epoch, each.step, each.update) for each in notes.steps]


def test_log_lines_appear_at_their_interval_and_after_each_epoch() -> None:
    state = make_state(loader=MemoryLoader(size=50))  # 7 batches
    notes = run(state, epochs=2, print_batch_step=3)
    assert steps(notes) == [(1, 3, 3), (1, 6, 6), (1, 7, 7), (2, 3, 10), (2, 6, 13), (2, 7, 14)]
    assert (state.update, state.epoch) == (14, 2)


def test_accumulation_logs_updates() -> None:
    state = make_state(loader=MemoryLoader(size=50, accumulate=2))  # 4 updates, the last of one batch
    notes = run(state, epochs=1, print_batch_step=3, update_freq=2)
    assert steps(notes) == [(1, 3, 3), (1, 4, 4)]
    assert notes.steps[-1].steps_per_epoch == 4


def test_resumed_epoch_logs_remaining_updates() -> None:
    state = make_state(loader=MemoryLoader(size=50))
    next(iter(state.loader))
    state.progress.update = 1
    assert steps(run(state, epochs=1, print_batch_step=3)) == [(1, 3, 3), (1, 6, 6), (1, 7, 7)]


def test_loop_of_finished_run_does_nothing() -> None:
    state = make_state()
    run(state, epochs=1)
    assert run(state, epochs=1).order == []


def test_early_stopping_ends_run_without_improvement() -> None:
    state, said = make_state(), list[str]()
    notes = run(state, Scores(0.5, 0.6, 0.6, 0.4, math.nan), said=said, epochs=9, early_stopping=3)
    assert [each.epoch for each in notes.evaluations if each.best] == [1, 2]
    assert (state.epoch, state.progress.best) == (5, 0.6)
    assert said[-1] == (
        "stopped early after epoch 5 of 9: top1 did not improve in the last 3 evaluations "
        "(Global.early_stopping)"
    )
    assert notes.saved[-1][1][0] == "latest"
    over = run(state, Scores(), said=said, epochs=9, early_stopping=3)
    assert over.order == []
    more = run(state, Scores(0.5), said=said, epochs=9, early_stopping=4)
    assert [each.epoch for each in more.evaluations] == [6]
    last = run(state, Scores(0.7, 0.6, 0.6), epochs=9)  # better again, and never patient for nothing
    assert [each.best for each in last.evaluations] == [True, False, False]
    assert state.progress.not_better == 2


def test_records_are_means_over_the_samples() -> None:
    state = make_state()
    sums: list[tuple[np.ndarray, int]] = []
    whole = loop.train_step

    def step(state: TrainState, batch: Batch, phases: StepHooks) -> Any:
        found = whole(state, batch, phases)
        sums.append((found.numpy(), batch.valid))
        return found

    (record,) = run(state, epochs=1, step=step).steps
    total, images = np.sum([each for each, _ in sums], axis=0), sum(valid for _, valid in sums)
    assert images == 20
    assert record.loss == pytest.approx(total[0] / 20, rel=1e-6)
    assert record.metrics == {
        "top1": pytest.approx(total[1] / 20),
        "top2": pytest.approx(total[2] / 20),
    }
    assert record.learning_rate == state.learning_rate(2) == state.optimizer.get_lr()
    assert record.images_per_second > 0
    assert 0 <= record.data_wait <= 1
    assert record.eta_seconds == 0


def test_evaluation_comes_at_its_interval_and_at_the_end() -> None:
    notes = run(make_state(), Scores(*[0.1] * 3), epochs=5, eval_interval=2)
    assert [(each.epoch, each.update) for each in notes.evaluations] == [(2, 6), (4, 12), (5, 15)]
    assert notes.order[:5] == ["log", "checkpoint", "log", "evaluation", "checkpoint"]
    assert set(notes.evaluated) == {(1, 1)}


def test_run_without_evaluator_saves_no_best_model() -> None:
    notes = run(make_state(), epochs=2)
    assert notes.evaluations == []
    assert notes.saved == [(3, ["latest", "epoch_1"]), (6, ["latest", "epoch_2"])]


def test_checkpoints_are_kept_at_their_interval_and_at_the_end() -> None:
    notes = run(make_state(), epochs=5, save_interval=2)
    assert [roles[1:] for _, roles in notes.saved] == [[], ["epoch_2"], [], ["epoch_4"], ["epoch_5"]]
    assert all(roles[0] == "latest" for _, roles in notes.saved)


def test_best_model_is_better_and_finite() -> None:
    state, nan, said = make_state(), float("nan"), list[str]()
    evaluator = Scores(0.0, 0.5, 0.5, 0.9, 0.8, 0.6, losses=(1.0, 1.0, 1.0, nan, float("inf"), 1.0))
    notes = run(state, evaluator, epochs=6, said=said)
    assert said == [
        f"epoch {epoch}: the evaluation's loss is {loss}, so this model can't become best_model"
        for epoch, loss in ((4, "nan"), (5, "inf"))
    ]
    assert [each.best for each in notes.evaluations] == [True, True, False, False, False, True]
    assert ["best_model" in roles for _, roles in notes.saved] == [True, True, False, False, False, True]
    assert state.progress.best == 0.6


def test_nan_score_is_never_best() -> None:
    state, said = make_state(), list[str]()
    notes = run(state, Scores(float("nan"), 0.1), epochs=2, said=said)
    assert said == ["epoch 1: the evaluation's top1 is nan, so this model can't become best_model"]
    assert [each.best for each in notes.evaluations] == [False, True]
    assert state.progress.best == 0.1


def test_best_score_before_resume_counts() -> None:
    state = make_state()
    state.progress.best = 0.5
    notes = run(state, Scores(0.4, 0.6), epochs=2)
    assert [each.best for each in notes.evaluations] == [False, True]


def test_evaluation_record_has_loss_and_metrics() -> None:
    (record,) = run(make_state(), Scores(0.25), epochs=1).evaluations
    assert record == EvalRecord(
        epoch=1, update=3, loss=1.0, metrics={"top1": 0.25, "top2": 1.0}, images=11, seconds=0.5, best=True
    )


def test_ema_is_evaluated_and_weights_continue_training() -> None:
    state, evaluator = make_state(decay=0.9), Scores(0.1, 0.2)
    assert state.ema is not None
    averages = []
    notes = Notes()
    whole = notes.save

    def save(state: TrainState, roles: Iterable[str], score: float | None = None, **_: bool) -> None:
        averages.append({name: each.numpy().copy() for name, each in state.ema.state_dict().items()})
        whole(state, roles)

    notes.save = save  # type: ignore[method-assign]
    fit(Run(state, Global(epochs=2), notes, evaluator, notes))  # type: ignore[arg-type]
    for seen, average in zip(evaluator.seen, averages, strict=True):
        assert_equal(seen, average)
    without = make_state()
    run(without, epochs=2)
    assert_equal(content(state.model), content(without.model))
    assert not np.array_equal(state.model.fc.weight.numpy(), averages[-1]["fc.weight"])


def test_latest_is_saved_between_epochs_too() -> None:
    state = make_state(loader=MemoryLoader(size=50))  # 7 updates an epoch
    notes = run(state, epochs=2, save_steps=3, save_interval=2)
    assert notes.saved == [
        (3, ["latest"]),
        (6, ["latest"]),
        (7, ["latest"]),
        (9, ["latest"]),
        (12, ["latest"]),
        (14, ["latest", "epoch_2"]),
    ]


def test_end_of_epoch_is_saved_once() -> None:
    notes = run(make_state(), epochs=2, save_steps=3)  # 3 updates an epoch
    assert [update for update, _ in notes.saved] == [3, 6]


def test_accumulation_saves_at_updates_only() -> None:
    state = make_state(loader=MemoryLoader(size=50, accumulate=2))
    assert [update for update, _ in run(state, epochs=1, save_steps=1, update_freq=2).saved] == [1, 2, 3, 4]


class Diverging(MemoryLoader):
    """Gives images of infinities in one batch of the second epoch."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            if self.cursor.epoch == 1 and self.cursor.step == 2:
                batch.image.copy_(batch.image / 0.0, True)
            yield batch


@pytest.mark.parametrize("save_steps", [None, 1])
@pytest.mark.parametrize("print_batch_step", [1, 10])
def test_diverging_run_stops_and_keeps_previous_model(
    tmp_path: Path, make_config: Any, save_steps: int | None, print_batch_step: int
) -> None:
    state, notes = make_state(model=Flat(), loader=Diverging(size=50)), Notes()
    settings = Global(
        epochs=3, print_batch_step=print_batch_step, save_steps=save_steps, output_dir=str(tmp_path)
    )
    with pytest.raises(
        UserError, match="the weights are NaN or infinite after a non-finite loss or gradient"
    ) as error:
        fit(Run(state, settings, checkpoints_of(tmp_path, make_config()), Scores(0.1, 0.2), notes))
    for text in (
        "update 9 (epoch 2, batch 2)",
        "learning rate 0.01111",
        "last good checkpoint",
        "step_0000000",
    ):
        assert text in str(error.value)
    assert all(np.isfinite(each.loss) for each in notes.steps)
    again = make_state(model=Flat(), loader=MemoryLoader(size=50))
    resume(again, tmp_path / "latest")
    assert again.update == (8 if save_steps else 7)
    assert all(np.isfinite(array).all() for array in content(again.model).values())


def test_diverging_run_names_checkpoint_in_fallback_folder(
    tmp_path: Path, make_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RETRY_DELAYS", ())
    output, other = tmp_path / "run", tmp_path / "elsewhere"
    output.mkdir()
    (output / "checkpoints").touch()  # where the folder should be
    config = make_config(Global__checkpoint_fallback_dir=str(other))
    state, settings = make_state(model=Flat(), loader=Diverging(size=50)), Global(epochs=3)
    with pytest.raises(UserError, match="non-finite") as error:
        fit(Run(state, settings, checkpoints_of(output, config), Scores(0.1, 0.2), Notes()))
    (kept,) = other.iterdir()
    assert f"last good checkpoint: {kept}/latest (step_00000007)" in str(error.value)


class Skipping(FP32):
    """Skips updates with a non-finite gradient, as float16's loss scaling does."""

    def __init__(self) -> None:
        super().__init__()
        self.loss_scale = LossScale(1024.0, dynamic=True)

    def prepare(self, model: nn.Layer, optimizer: Any) -> None:
        pass


def test_run_continues_after_skipped_update_and_logs_it(tmp_path: Path, make_config: Any) -> None:
    state = make_state(model=Flat(), loader=Diverging(size=50), precision=Skipping())
    notes, said = Notes(), list[str]()
    notes.message = lambda text, update=None: said.append(text)  # type: ignore[method-assign]
    settings = Global(epochs=3, print_batch_step=2, output_dir=str(tmp_path))
    fit(Run(state, settings, checkpoints_of(tmp_path, make_config()), Scores(0.1, 0.2, 0.3), notes))
    assert (state.epoch, state.update) == (3, 21)
    assert all(np.isfinite(each.loss) for each in notes.steps)
    assert said == ["skipped update 9 because of non-finite gradients; the loss scale is 512"]


class Exploding(MemoryLoader):
    """Makes the last update of an epoch end in weights that are not finite, after a finite loss."""

    rate = 0.1

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            if self.cursor.epoch == 2:
                self.rate = float("inf")
            yield batch


def test_weights_that_break_in_the_last_update_are_not_saved(tmp_path: Path, make_config: Any) -> None:
    loader = Exploding()
    state = replace(make_state(loader=loader), schedule=lambda _: loader.rate)
    with pytest.raises(UserError, match="weights are NaN or infinite at update 6"):
        fit(Run(state, Global(epochs=3), checkpoints_of(tmp_path, make_config()), None, Notes()))
    again = make_state()
    resume(again, tmp_path / "latest")
    assert again.update == 3


class Signalled(Scores):
    """Gets a signal while it evaluates."""

    def __call__(self, model: nn.Layer, between: Callable[[], None]) -> EvalResult:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            between()
            time.sleep(0.001)


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [(number, signal.getsignal(number)) for number in numbers]
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


@pytest.mark.usefixtures("handlers")
def test_resume_repeats_interrupted_evaluation_first(
    tmp_path: Path, make_config: Callable[..., Config]
) -> None:
    state, checkpoints = make_state(decay=0.9), checkpoints_of(tmp_path, make_config())
    with pytest.raises(SignalExit) as caught:
        fit(Run(state, Global(epochs=2), checkpoints, Signalled(), Notes()))  # type: ignore[arg-type]
    assert caught.value.code == 143
    again, notes, scores = make_state(seed=2, decay=0.9), Notes(), Scores(0.3, 0.2)
    resume(again, tmp_path / "latest")
    assert (again.epoch, again.step, again.progress.closing) == (1, 0, True)
    assert_equal(content(again.model), content(state.model))
    fit(Run(again, Global(epochs=2), checkpoints, scores, notes))  # type: ignore[arg-type]
    straight, undisturbed = make_state(decay=0.9), Notes()
    fit(Run(straight, Global(epochs=2), undisturbed, Scores(0.3, 0.2), undisturbed))  # type: ignore[arg-type]
    assert [(each.epoch, each.best) for each in notes.evaluations] == [(1, True), (2, False)]
    assert_equal(content(again.model), content(straight.model))
    assert read_manifest(tmp_path / "best_model").score == 0.3
