"""Steps with fewer images the larger they are: each sample once, on any ranks and loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_input_size import CHAINS, MAKERS, index, take

from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.epoch_samplers import ShuffledSampler
from ppcls.data.sampling.equal_pixels import EqualPixelsOrder
from ppcls.data.sampling.order import Cursor
from ppcls.data.sampling.samplers import MultiScaleSampler
from ppcls.data.sampling.sizes import EqualPixels
from ppcls.data.transforms.specs import plan_chain
from ppcls.errors import UserError

__all__ = ["index"]
SIZES = EqualPixels(sizes=(16, 24, 40), rows=(4, 2, 1))


@st.composite
def epochs(draw: st.DrawFn) -> tuple[list[EqualPixelsOrder], int]:
    """The orders of all ranks, and an epoch."""
    group = draw(st.integers(1, 3))
    rows = tuple(draw(st.lists(st.integers(1, 6).map(lambda n: n * group), min_size=1, max_size=4)))
    world = draw(st.integers(1, 4))
    common: dict[str, Any] = {
        "sampler": ShuffledSampler(draw(st.integers(1, 70))),
        "batch_size": max(rows),
        "seed": draw(st.integers(0, 9)),
        "world": world,
        "drop_last": draw(st.booleans()),
        "accumulate": draw(st.integers(1, 3)),
        "group": group,
        "sizes": EqualPixels(sizes=tuple(range(1, len(rows) + 1)), rows=rows),
    }
    return [EqualPixelsOrder(rank=rank, **common) for rank in range(world)], draw(st.integers(0, 3))


@given(epochs())
def test_equal_pixels_epoch_has_each_sample_once_with_equal_weight(
    drawn: tuple[list[EqualPixelsOrder], int],
) -> None:
    orders, epoch = drawn
    one = orders[0]
    seen: list[int] = []
    shares: dict[int, float] = {}
    update = 0
    for number in range(len(one)):
        steps = [order.at(Cursor(epoch, number)) for order in orders]
        assert {len(step.indices) for step in steps} == {one.rows(number)}
        assert (
            one.sizes.size_at(one.seed, Cursor(epoch, number)) == 1 + one.sizes.rows.index(one.rows(number))
            or one.sizes.rows.count(one.rows(number)) > 1
        )
        for step in steps:
            seen += step.indices[: step.valid].tolist()
            shares[update] = shares.get(update, 0.0) + step.weight
        assert len({step.update for step in steps}) == 1
        update += steps[0].update
    assert len(seen) == len(set(seen))
    left_out = one.size - len(seen)
    assert left_out == 0 if not one.drop_last else 0 <= left_out < one.rows(len(one)) * one.world
    assert all(share == pytest.approx(one.world) for share in shares.values())
    assert update == one.updates_per_epoch


def test_multi_scale_sampler_limits_the_pixels_of_a_batch() -> None:
    spec = MultiScaleSampler(scales=[160, 192, 230, 320], first_bs=500)
    assert spec.input_size == EqualPixels(sizes=(160, 192, 224, 320), rows=(500, 347, 255, 125))
    assert (spec.rows(8), spec.global_batch(8)) == (500, 4000)
    assert spec.rows(8, group=3) == 498
    odd = MultiScaleSampler(scales=[64, 64], first_bs=5)
    assert (odd.rows(2), odd.global_batch(2)) == (5, 10)
    tiny = MultiScaleSampler(scales=[32, 64], first_bs=1)
    assert tiny.input_size.rows == (1, 1)


@pytest.mark.parametrize("kind", ["dali-cpu", "paddle", pytest.param("dali-gpu", marks=pytest.mark.gpu)])
def test_loaders_return_equal_pixels_batches(kind: str, index: FileIndex) -> None:
    order = EqualPixelsOrder(sampler=ShuffledSampler(12), batch_size=4, seed=5, sizes=SIZES)
    ops = plan_chain(CHAINS[0], "CHW")
    loader = MAKERS[kind](index, order, ops, sizes=SIZES)
    batches = [(batch, np.array(batch.image)) for _ in range(2) for batch in loader]
    assert len(batches) == 2 * len(order)
    assert len({image.shape for _, image in batches}) == 3
    for number, (batch, image) in enumerate(batches):
        cursor = Cursor(number // len(order), number % len(order))
        side, step = SIZES.size_at(5, cursor), order.at(cursor)
        assert image.shape == (dict(zip(SIZES.sizes, SIZES.rows, strict=True))[side], 3, side, side)
        np.testing.assert_array_equal(batch.label.numpy(), index.labels[step.indices])
        assert batch.valid == step.valid


def test_loaders_agree_and_resume_with_equal_pixels(index: FileIndex) -> None:
    ops = plan_chain(CHAINS[0], "CHW")
    order = EqualPixelsOrder(sampler=ShuffledSampler(12), batch_size=4, seed=5, sizes=SIZES)
    one, two = (take(MAKERS[kind](index, order, ops, sizes=SIZES), 2) for kind in ("dali-cpu", "paddle"))
    for dali, paddle in zip(one, two, strict=True):
        assert (np.abs(dali - paddle) * 255 * 0.225).mean() < 0.5
    for kind, whole in (("dali-cpu", one), ("paddle", two)):
        loader = MAKERS[kind](index, order, ops, sizes=SIZES)
        loader.load_state_dict(order.state_dict(Cursor(1, 2)))
        for found, image in zip(take(loader), whole[len(order) + 2 :], strict=True):
            np.testing.assert_array_equal(found, image)


def test_equal_pixels_resume_rejects_another_world_size() -> None:
    two = EqualPixelsOrder(sampler=ShuffledSampler(40), batch_size=4, world=2, sizes=SIZES)
    one = EqualPixelsOrder(sampler=ShuffledSampler(40), batch_size=4, sizes=SIZES)
    assert one.restore(two.state_dict(Cursor(3, 0))) == Cursor(3, 0)
    with pytest.raises(UserError, match=r"2 ranks 4 of 16 pixels.*at the end of an epoch"):
        one.restore(two.state_dict(Cursor(3, 1)))
