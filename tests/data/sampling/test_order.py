"""The order of samples over ranks, steps, epochs and interruptions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.sampling.epoch_samplers import (
    BalancedClassSampler,
    EpochSampler,
    RepeatedAugmentationSampler,
    SequentialSampler,
    ShuffledSampler,
)
from ppcls.data.sampling.order import Cursor, Order, StepSamples, count_repeats
from ppcls.data.sampling.samplers import DistributedBatchSampler
from ppcls.errors import UserError

ONCE = st.one_of(
    st.builds(SequentialSampler, st.integers(1, 60)), st.builds(ShuffledSampler, st.integers(1, 60))
)


@st.composite
def orders(draw: st.DrawFn, samplers: st.SearchStrategy[EpochSampler], group: int = 1) -> Order:
    """Orders with a batch size of each rank, or of all together, which they may not share alike."""
    order = draw(same_size(samplers, group))
    if draw(st.booleans()):
        return order
    groups = draw(st.integers(order.world, 9 * order.world))
    rows = -(-groups // order.world) * group
    return replace(order, batch_size=rows, global_batch_size=groups * group)


def same_size(samplers: st.SearchStrategy[EpochSampler], group: int) -> st.SearchStrategy[Order]:
    return st.builds(
        Order,
        sampler=samplers,
        batch_size=st.integers(1, 9).map(lambda groups: groups * group),
        seed=st.integers(0, 9),
        world=st.integers(1, 4),
        drop_last=st.booleans(),
        accumulate=st.integers(1, 4),
        group=st.just(group),
    )


ORDERS = st.one_of(orders(ONCE), orders(ONCE, group=2), orders(ONCE, group=3))
REPEATING = st.one_of(
    st.builds(
        lambda labels, samples: BalancedClassSampler(np.array(labels), samples),
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.integers(1, 50),
    ),
    st.builds(RepeatedAugmentationSampler, st.integers(1, 50), st.integers(1, 4), st.integers(1, 20)),
)
ANY = st.one_of(*(orders(each, group) for each in (ONCE, REPEATING) for group in (1, 2, 3)))
EPOCHS = st.integers(0, 3)
MIDDLE, END = Cursor(2, 1), Cursor(3, 0)


def epoch_of(order: Order, epoch: int) -> list[list[StepSamples]]:
    """Returns each step's part of every rank."""
    ranks = [replace(order, rank=rank) for rank in range(order.world)]
    assert len({len(each) for each in ranks}) == 1, "all ranks make the same steps"
    return [[each.at(Cursor(epoch, step)) for each in ranks] for step in range(len(order))]


def real(parts: list[StepSamples]) -> list[int]:
    return [index for part in parts for index in part.indices[: part.valid].tolist()]


def came(steps: list[list[StepSamples]]) -> list[tuple[int, int]]:
    """Returns each real sample with how often it came before."""
    return [
        (index, repeat)
        for parts in steps
        for part in parts
        for index, repeat in list(zip(part.indices.tolist(), part.repeats.tolist(), strict=True))[
            : part.valid
        ]
    ]


@given(ORDERS, EPOCHS)
def test_order_has_each_sample_once_per_epoch(order: Order, epoch: int) -> None:
    seen = [index for parts in epoch_of(order, epoch) for index in real(parts)]
    assert len(set(seen)) == len(seen)
    if order.drop_last:
        assert len(seen) == order.size // order.global_batch * order.global_batch
    else:
        assert sorted(seen) == list(range(order.size))
    if isinstance(order.sampler, SequentialSampler):
        assert seen == list(range(len(seen)))


@given(ANY, EPOCHS)
def test_order_has_equal_steps_and_updates_on_all_ranks(order: Order, epoch: int) -> None:
    """Whatever the size: a rank that made one step more would wait for the others forever."""
    ranks = [replace(order, rank=rank) for rank in range(order.world)]
    plans = [[each.at(Cursor(epoch, step)) for step in range(len(each))] for each in ranks]
    assert len({len(plan) for plan in plans}) == 1
    assert len({tuple(step.update for step in plan) for plan in plans}) == 1
    assert all(len(step.indices) == order.batch_size for plan in plans for step in plan)


@given(ANY, EPOCHS)
def test_order_keeps_the_samplers_order_on_any_ranks(order: Order, epoch: int) -> None:
    seen = [index for parts in epoch_of(order, epoch) for index in real(parts)]
    assert seen == order.sampler.epoch(order.seed, epoch)[: len(seen)].tolist()
    assert len(seen) == order.count_samples(0, len(order))


@given(ANY, EPOCHS)
def test_order_keeps_groups_on_one_rank(order: Order, epoch: int) -> None:
    for parts in epoch_of(order, epoch):
        ends = np.cumsum([part.valid for part in parts]).tolist()
        assert all(end % order.group == 0 or end == ends[-1] for end in ends)


@given(ANY, EPOCHS)
def test_repeats_count_earlier_occurrences(order: Order, epoch: int) -> None:
    before: Counter[int] = Counter()
    steps = epoch_of(order, epoch)
    for index, repeat in came(steps):
        assert repeat == before[index]
        before[index] += 1
    for parts in steps:
        for part in parts:
            assert part.repeats.shape == part.indices.shape
            assert part.repeats.dtype == np.int64
            padding = zip(part.indices[part.valid :], part.repeats[part.valid :], strict=True)
            assert all(order.drop_last or (index, repeat) in came(steps) for index, repeat in padding)


def test_count_repeats_of_known_positions() -> None:
    found = count_repeats(np.array([7, 5, 7, 7, 5, 0]))
    assert found.tolist() == [0, 0, 1, 2, 1, 0]
    assert count_repeats(np.array([], np.int64)).tolist() == []


def test_order_rejects_batch_that_divides_groups() -> None:
    with pytest.raises(UserError) as caught:
        Order(SequentialSampler(12), batch_size=6, group=4)
    assert str(caught.value) == (
        "a batch of 6 can't be divided into groups of 4 samples that stay together; "
        "set batch_size to a multiple of 4"
    )


@given(ORDERS, EPOCHS)
def test_order_pads_batches_with_first_samples(order: Order, epoch: int) -> None:
    epoch_samples = [sample for parts in epoch_of(order, epoch) for sample in real(parts)]
    if order.drop_last:
        epoch_samples = list(range(order.size))  # padding may be of a step that is left out
    for parts in epoch_of(order, epoch):
        for part in parts:
            assert part.indices.shape == (order.batch_size,)
            assert part.indices.dtype == np.int64
            assert 0 <= part.valid <= order.batch_size
            first = epoch_samples if order.drop_last else epoch_samples[: order.batch_size * order.world]
            assert set(part.indices[part.valid :].tolist()) <= set(first)
        valid = [part.valid for part in parts]
        groups = [-(-each // order.group) for each in valid]
        assert max(groups) - min(groups) <= 1
        assert valid == sorted(valid, reverse=True)


@given(ORDERS, EPOCHS)
def test_valid_counts_real_samples(order: Order, epoch: int) -> None:
    steps = [sum(part.valid for part in parts) for parts in epoch_of(order, epoch)]
    assert steps == [order.count_samples(step, step + 1) for step in range(len(order))]
    assert sum(steps) == order.count_samples(0, len(order))
    assert all(each == order.global_batch for each in steps[:-1])
    if order.drop_last and steps:
        assert steps[-1] == order.global_batch


@given(st.one_of(ONCE, REPEATING), st.integers(1, 4), st.integers(0, 9), st.booleans(), EPOCHS)
def test_step_has_the_same_samples_on_any_number_of_ranks(
    sampler: EpochSampler, quarter: int, seed: int, drop_last: bool, epoch: int
) -> None:
    epochs = [
        [came([parts]) for parts in epoch_of(order, epoch)]
        for world in (1, 2, 4)
        for order in [Order(sampler, 4 * quarter // world, seed, 0, world, drop_last)]
    ]
    assert epochs[0] == epochs[1] == epochs[2]


@given(
    st.one_of(ONCE, REPEATING), st.integers(1, 3), st.integers(4, 9), st.integers(0, 9), st.booleans(), EPOCHS
)
def test_global_batch_size_is_kept_on_any_number_of_ranks(
    sampler: EpochSampler, group: int, groups: int, seed: int, drop_last: bool, epoch: int
) -> None:
    orders = [
        Order(
            sampler,
            spec.rows(world, group),
            seed,
            world=world,
            drop_last=drop_last,
            group=group,
            global_batch_size=spec.global_batch(world),
        )
        for spec in [DistributedBatchSampler(global_batch_size=groups * group)]
        for world in (1, 2, 3, 4)
    ]
    one, *others = ([came([parts]) for parts in epoch_of(order, epoch)] for order in orders)
    assert all(other == one for other in others)
    state = orders[0].state_dict(MIDDLE)
    assert all(order.restore(state) == MIDDLE for order in orders)


def test_order_rejects_global_batch_smaller_than_ranks() -> None:
    with pytest.raises(
        UserError, match="size 6 is too small for 4 processes: each process needs at least 2 samples"
    ):
        Order(SequentialSampler(12), batch_size=2, world=4, group=2, global_batch_size=6)


@given(ORDERS, EPOCHS)
def test_weights_average_over_the_samples_of_an_update(order: Order, epoch: int) -> None:
    gradients = np.random.default_rng(0).normal(size=order.size)  # of each sample
    update: list[list[StepSamples]] = []
    updates = 0
    for parts in epoch_of(order, epoch):
        update.append(parts)
        assert len({part.update for part in parts}) == 1, "all ranks update together"
        assert len(update) <= order.accumulate
        if not parts[0].update:
            continue
        weights = sum(part.weight for step in update for part in step)
        assert weights == pytest.approx(order.world)
        sums = [0.0] * order.world
        for step in update:
            for rank, part in enumerate(step):
                if part.valid:
                    sums[rank] += part.weight * gradients[part.indices[: part.valid]].mean()
                else:
                    assert part.weight == 0
        samples = [index for step in update for index in real(step)]
        assert np.mean(sums) == pytest.approx(gradients[samples].mean())
        update, updates = [], updates + 1
    assert not update, "an epoch ends with an update"
    assert updates == order.updates_per_epoch


@given(ORDERS)
def test_weights_are_exact(order: Order) -> None:
    for parts in epoch_of(replace(order, accumulate=1), 0):
        total = sum(part.valid for part in parts)
        for part in parts:
            assert part.weight == float(Fraction(part.valid * order.world, total))


def test_shuffled_epochs_differ() -> None:
    order = Order(ShuffledSampler(40), batch_size=40)
    epochs = {tuple(order.at(Cursor(epoch, 0)).indices) for epoch in range(6)}
    assert len(epochs) == 6
    assert tuple(replace(order, seed=1).at(Cursor(0, 0)).indices) not in epochs


def test_cursor_next_enters_the_next_epoch() -> None:
    cursor, seen = Cursor(), []
    for _ in range(5):
        seen.append((cursor.epoch, cursor.step))
        cursor = cursor.next(2)
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


BASE = Order(ShuffledSampler(40), batch_size=4, seed=1, world=2, accumulate=2)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"sampler": ShuffledSampler(41)}, "size was 40 and is now 41"),
        ({"seed": 2}, "seed was 1 and is now 2"),
        ({"sampler": SequentialSampler(40)}, "sampler was shuffled and is now in order"),
        (
            {"sampler": RepeatedAugmentationSampler(40, 3, 8)},
            "sampler was shuffled and is now each image 3 times in batches of 8",
        ),
        ({"sampler": ShuffledSampler(39), "seed": 5}, "size was 40 and is now 39; seed was 1 and is now 5"),
    ],
)
def test_restore_rejects_changed_sampler_only_within_an_epoch(changed: dict[str, Any], text: str) -> None:
    other = replace(BASE, **changed)
    with pytest.raises(UserError) as caught:
        other.restore(BASE.state_dict(MIDDLE))
    assert str(caught.value) == (
        f"the checkpoint is in the middle of epoch 3, but {text}: the rest of the epoch would have other "
        "samples. Keep seed, sampler and dataset, or resume from a checkpoint at the end of an epoch, such "
        "as epoch_N"
    )
    assert other.restore(BASE.state_dict(END)) == END


def test_restore_rejects_changed_global_batch_for_dependent_sampler() -> None:
    repeated = replace(BASE, sampler=RepeatedAugmentationSampler(40, 3, 8))
    other = replace(BASE, sampler=RepeatedAugmentationSampler(40, 3, 16), batch_size=8)
    with pytest.raises(UserError, match="in batches of 8 and is now each image 3 times in batches of 16"):
        other.restore(repeated.state_dict(MIDDLE))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.data())
def test_restore_with_another_global_batch_skips_no_sample(
    was: int, was_each: int, now: int, now_each: int, drop_last: bool, data: st.DataObject
) -> None:
    before = Order(ShuffledSampler(37), was, seed=1, accumulate=was_each)
    after = Order(ShuffledSampler(37), now, seed=1, accumulate=now_each, drop_last=drop_last)
    done = data.draw(st.integers(0, before.updates_per_epoch - 1)) * was_each
    cursor = after.restore(before.state_dict(Cursor(2, done)))
    assert cursor.epoch == 2
    assert cursor.step < len(after)
    assert cursor.step % now_each == 0, "an update begins there"
    twice = done * was - cursor.step * now
    last = cursor.step + now_each >= len(after)
    assert 0 <= twice < now * now_each or (last and drop_last)


@pytest.mark.parametrize(("world", "batch_size"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_restore_accepts_another_world_size_within_an_epoch(world: int, batch_size: int) -> None:
    other = replace(BASE, world=world, batch_size=batch_size, rank=world - 1)
    assert other.restore(BASE.state_dict(MIDDLE)) == MIDDLE


@given(st.one_of(ONCE, REPEATING), st.integers(1, 4), st.integers(0, 9), EPOCHS, st.data())
def test_resumed_run_on_other_ranks_has_the_same_samples(
    sampler: EpochSampler, quarter: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    one, four = (Order(sampler, 4 * quarter // world, seed, 0, world) for world in (1, 4))
    step = data.draw(st.integers(0, len(one) - 1))
    cursor = four.restore(one.state_dict(Cursor(epoch, step)))
    expected = came(epoch_of(one, epoch))
    found = came(epoch_of(four, cursor.epoch)[cursor.step :])
    assert found == expected[step * one.global_batch :]


@given(ORDERS, EPOCHS, st.integers(0, 60))
def test_restore_returns_the_saved_cursor(order: Order, epoch: int, step: int) -> None:
    cursor = Cursor(epoch, step)
    assert order.restore(order.state_dict(cursor)) == cursor


@pytest.mark.parametrize("sampler", [ShuffledSampler(40), SequentialSampler(40)])
def test_restore_state_of_an_old_version_without_sampler(
    sampler: ShuffledSampler | SequentialSampler,
) -> None:
    order = replace(BASE, sampler=sampler)
    state = order.state_dict(MIDDLE)
    del state["sampler"]
    state["shuffle"] = isinstance(sampler, ShuffledSampler)
    assert order.restore(state) == MIDDLE
    with pytest.raises(UserError, match="sampler was"):
        order.restore({**state, "shuffle": not state["shuffle"]})


@given(st.integers(1, 7), st.integers(0, 20), st.integers(0, 20))
def test_cursor_next_by_several_batches_equals_single_steps(steps: int, first: int, batches: int) -> None:
    begin = Cursor().next(steps, first)
    one_by_one = begin
    for _ in range(batches):
        one_by_one = one_by_one.next(steps)
    assert begin.next(steps, batches) == one_by_one
