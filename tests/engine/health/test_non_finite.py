from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_net import MemoryLoader, make_state

from ppcls.data.bad_images.lists import read_bad_images
from ppcls.data.sampling.order import Cursor
from ppcls.engine.core.gradients import UpdateOutcomes
from ppcls.engine.core.state import TrainState
from ppcls.engine.health.non_finite import BAD_STEPS, NonFiniteMonitor, UpdateRange
from ppcls.errors import UserError

NAN = float("nan")


def no_checkpoint() -> None:
    """A run that has none."""


def updates(
    losses: list[list[float]] | list[float], step: int = 0, update: int = 0, epoch: int = 0, every: int = 1
) -> UpdateRange:
    """Updates of ``every`` batches in float32; one list of losses a rank, or of the only one."""
    ranks = np.atleast_2d(np.array(losses))
    ends = np.arange(1, ranks.shape[1] + 1) % every == 0
    return UpdateRange(epoch, step, update, ends, ranks, UpdateOutcomes(np.zeros(ends.sum(), np.bool_)))


def scaled(updates: UpdateRange, skipped: list[bool], scales: list[float], floor: float = 1.0) -> UpdateRange:
    return replace(updates, gradients=UpdateOutcomes(np.array(skipped), np.array(scales), floor))


def state(ranks: int = 1, size: int = 100, accumulate: int = 1) -> TrainState:
    loader = MemoryLoader(size=size, accumulate=accumulate)
    loader.order = replace(loader.order, world=ranks)
    return make_state(loader=loader)


def spoil(state: TrainState) -> TrainState:
    state.model.fc.bias.set_value(np.full(4, NAN, np.float32))
    return state


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 4), st.data())
def test_run_stops_after_too_many_consecutive_non_finite_updates(
    bad: list[bool], limit: int, data: st.DataObject
) -> None:
    watch = NonFiniteMonitor(STATE, limit, Path("nowhere"), no_checkpoint)
    row, expected = 0, None
    for number, each in enumerate(bad, start=1):
        row = row + 1 if each else 0
        if row > limit and expected is None:
            expected = number
    losses, done = [NAN if each else 1.0 for each in bad], 0
    found = None
    while done < len(bad) and found is None:
        length = data.draw(st.integers(1, len(bad) - done))
        try:
            watch.check(updates(losses[done : done + length], step=done % 10, update=done))
        except UserError as error:
            found = int(str(error).split(":")[0].removeprefix("update "))
        done += length
    assert found == expected


STATE = state(size=400)


def test_non_finite_error_names_update_rate_scale_checkpoint_and_files(tmp_path: Path) -> None:
    run = state()
    (tmp_path / "step_00000030").mkdir()
    (tmp_path / "latest").symlink_to("step_00000030")
    watch = NonFiniteMonitor(run, 2, tmp_path, lambda: tmp_path / "latest")
    watch.check(scaled(updates([1.0, 1.0], 3, 29, 2), [False, True], [64.0, 32.0]))
    with pytest.raises(UserError) as error:
        watch.check(scaled(updates([1.0, NAN], 5, 31, 2), [True, True], [16.0, 8.0]))
    first = run.loader.order.at(Cursor(2, 4)).indices.tolist()
    names = ", ".join(f"image {position}" for position in first[:5])
    assert str(error.value).splitlines() == [
        "update 33: 3 consecutive updates had a non-finite loss or gradient, more than "
        "Global.max_bad_steps (2); the first was update 31 (epoch 3, batch 5)",
        f"  learning rate {0.1 / 31:.4g}, loss scale 8; "
        f"last good checkpoint: {tmp_path}/latest (step_00000030)",
        f"  images of update 31 (epoch 3, batch 5): {names} and 3 more; "
        f"all are listed in {tmp_path}/{BAD_STEPS}",
        "  lower Optimizer.lr.learning_rate or warm up; use clip_norm; check these images",
    ]
    listed = read_bad_images(tmp_path / BAD_STEPS)
    assert [each.name for each in listed] == [f"image {position}" for position in first]
    assert listed[0].where == f"line {first[0] + 1}"
    assert {each.reason for each in listed} == {"in the batch of update 31, rank 0"}


def test_loss_scale_below_minimum_stops_the_run(tmp_path: Path) -> None:
    watch = NonFiniteMonitor(state(), 20, tmp_path, no_checkpoint)
    watch.check(scaled(updates([1.0]), [True], [8.0], floor=8.0))
    with pytest.raises(UserError) as error:
        watch.check(scaled(updates([1.0, 1.0], 1, 1), [True, False], [4.0, 4.0], floor=8.0))
    first, second, _, last = str(error.value).splitlines()
    assert first == (
        "update 2: the loss scale would fall to 4, below AMP.min_loss_scaling (8); "
        "the first was update 1 (epoch 1, batch 1)"
    )
    assert second == "  learning rate 0.1, loss scale 4; last good checkpoint: none"
    assert last.endswith("FLAGS_cudnn_batchnorm_spatial_persistent=0 in the environment")


def test_growing_loss_scale_does_not_stop_the_run() -> None:
    watch = NonFiniteMonitor(state(), 20, Path("nowhere"), no_checkpoint)
    watch.check(scaled(updates([1.0]), [False], [0.5], floor=1.0))
    assert watch.note() is None


def test_non_finite_gradients_count_although_the_loss_is_finite(tmp_path: Path) -> None:
    watch = NonFiniteMonitor(state(), 1, tmp_path, no_checkpoint)
    watch.check(replace(updates([1.0, 1.0]), gradients=UpdateOutcomes(np.array([False, True]))))
    assert watch.note() is None, "nothing was skipped"
    with pytest.raises(UserError, match=r"^update 3: 2 consecutive updates .*; the first was update 2"):
        watch.check(replace(updates([1.0], 2, 2), gradients=UpdateOutcomes(np.array([True]))))


def test_lost_weights_end_the_run_before_the_limit(tmp_path: Path) -> None:
    NonFiniteMonitor(state(), 20, tmp_path, no_checkpoint).check(updates([1.0, NAN]))
    with pytest.raises(UserError, match=r"^update 2: the weights are NaN or infinite"):
        NonFiniteMonitor(spoil(state()), 20, tmp_path, no_checkpoint).check(updates([1.0, NAN]))
    hidden = r"^update 3: the weights are NaN .*; the first was update 2 \(epoch 1, batch 2\)"
    with pytest.raises(UserError, match=hidden):  # as rectifiers may hide it
        NonFiniteMonitor(spoil(state()), 20, tmp_path, no_checkpoint).check(updates([1.0, NAN, 1.0]))


def test_non_finite_error_names_files_of_failing_ranks(tmp_path: Path) -> None:
    run = state(ranks=3)
    with pytest.raises(UserError):
        NonFiniteMonitor(run, 0, tmp_path, no_checkpoint).check(updates([[1.0, 1.0], [1.0, NAN], [1.0, 1.0]]))
    order = replace(run.loader.order, rank=1)
    expected = [f"image {each}" for each in order.at(Cursor(0, 1)).indices.tolist()]
    assert [each.name for each in read_bad_images(tmp_path / BAD_STEPS)] == expected


def test_gradient_overflow_names_files_of_all_ranks_and_batches(tmp_path: Path) -> None:
    run = state(ranks=2, accumulate=2)
    losses = updates([[1.0] * 4, [1.0] * 4], every=2)
    with pytest.raises(UserError, match=r"images of update 2 \(epoch 1, batches 3 to 4\): "):
        NonFiniteMonitor(run, 0, tmp_path, no_checkpoint).check(scaled(losses, [False, True], [8.0, 4.0]))
    listed = read_bad_images(tmp_path / BAD_STEPS)
    assert len({each.name for each in listed}) == 2 * 2 * 8
    assert {each.reason[-6:] for each in listed} == {"rank 0", "rank 1"}


def test_non_finite_batch_makes_its_update_non_finite() -> None:
    losses = updates([1.0, 1.0, NAN, 1.0, 1.0, 1.0], every=2)
    assert losses.bad().tolist() == [False, True, False]
    assert updates([[1.0, 1.0], [1.0, float("inf")]]).bad().tolist() == [False, True]


def test_only_real_samples_are_named(tmp_path: Path) -> None:
    run = state(size=10)
    with pytest.raises(UserError, match=r"images of update .*: image \d+, image \d+\n"):
        NonFiniteMonitor(run, 0, tmp_path, no_checkpoint).check(updates([NAN], step=1))
    assert not (tmp_path / BAD_STEPS).exists()


def test_only_rank_0_writes(tmp_path: Path) -> None:
    run = state(ranks=2)
    run = replace(run, runtime=replace(run.runtime, rank=1, world_size=2))
    with pytest.raises(UserError, match="and 3 more\n"):
        NonFiniteMonitor(run, 0, tmp_path, no_checkpoint).check(updates([[NAN], [1.0]]))
    assert list(tmp_path.iterdir()) == []


def test_unwritable_bad_steps_file_does_not_hide_the_error(tmp_path: Path) -> None:
    (tmp_path / BAD_STEPS).mkdir()
    with pytest.raises(UserError, match=r"and 3 more \(.*bad_steps.txt can't be written: Is a directory\)"):
        NonFiniteMonitor(state(), 0, tmp_path, no_checkpoint).check(updates([NAN]))


def test_skipped_updates_are_logged_once() -> None:
    watch = NonFiniteMonitor(state(), 20, Path("nowhere"), no_checkpoint)
    watch.check(scaled(updates([1.0] * 3, 0, 9), [False, True, False], [8.0, 4.0, 4.0]))
    assert watch.note() == "skipped update 11 because of non-finite gradients; the loss scale is 4"
    assert watch.note() is None
    watch.check(scaled(updates([1.0] * 3, 3, 12), [True, False, True], [2.0, 2.0, 1.0]))
    assert watch.note() == (
        "skipped 2 updates from 13 to 15 because of non-finite gradients; the loss scale is 1"
    )
