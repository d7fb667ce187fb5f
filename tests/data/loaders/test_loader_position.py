"""Conformance of all loaders: state, resuming and seeking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest
from loader_conformance import FAST, ORDER, Arrays, arrays, assert_equal, sources, take

from ppcls.data.loaders.batch import Loader
from ppcls.data.sampling.order import Cursor
from ppcls.errors import UserError


@pytest.mark.parametrize("kind", FAST)
def test_load_state_dict_enters_another_epoch(
    make: Callable[..., Loader], uninterrupted: list[Arrays]
) -> None:
    first, second = uninterrupted[:6], uninterrupted[6:12]
    assert [each[1].tolist() for each in first] != [each[1].tolist() for each in second]
    fresh = make()
    fresh.load_state_dict(ORDER.state_dict(Cursor(1, 0)))
    assert_equal(take(fresh), second)


def test_resume_from_every_step_equals_uninterrupted(kind: str, make: Callable[..., Loader]) -> None:
    loader = make()
    states, uninterrupted = [loader.state_dict()], []
    for _ in range(2):
        for batch in loader:
            uninterrupted.append(arrays(batch))
            states.append(loader.state_dict())
    assert len(uninterrupted) == 12
    for step in range(7) if kind in FAST else (2, 6):
        resumed = make()
        resumed.load_state_dict(states[step])
        assert resumed.state_dict() == states[step]
        rest = take(resumed)
        assert_equal(rest, uninterrupted[step : 6 if step < 6 else 12])
        if step in (2, 5):  # and the epoch after it
            assert_equal(take(resumed), uninterrupted[6:])


@sources("files", "tfrecord")
def test_seek_returns_same_batches(
    kind: str, make: Callable[..., Loader], uninterrupted: list[Arrays]
) -> None:
    loader = make()
    moves = [  # epoch, step, batches to take
        *((0, 0, 3), (0, 1, 2), (0, 4, 2), (2, 1, 1), (0, 0, 1)),
        *((0, 1, 5), (1, 5, 1), (1, 5, 1), (0, 3, 1), (0, 5, 1)),
    ]
    for epoch, step, count in moves if kind in FAST else moves[:4]:
        loader.load_state_dict(ORDER.state_dict(Cursor(epoch, step)))
        found = [arrays(batch) for batch in islice(loader, count)]
        assert_equal(found, uninterrupted[6 * epoch + step : 6 * epoch + step + count])
        assert loader.state_dict() == ORDER.state_dict(
            Cursor(epoch, step + count) if step + count < 6 else Cursor(epoch + 1, 0)
        )


def test_interrupted_iteration_continues(make: Callable[..., Loader], uninterrupted: list[Arrays]) -> None:
    loader = make()
    found = [arrays(batch) for batch in islice(loader, 2)]
    assert_equal(found + take(loader), uninterrupted[:6])


@pytest.mark.parametrize("kind", FAST)
def test_state_of_another_order_is_rejected(make: Callable[..., Loader]) -> None:
    loader = make()
    with pytest.raises(UserError, match="in the middle of epoch 1, but seed was 4 and is now 3"):
        loader.load_state_dict(replace(ORDER, seed=4).state_dict(Cursor(0, 2)))
    assert len(take(loader)) == 6


@sources("files", "lmdb")
def test_interleaved_loaders_are_independent(
    make: Callable[..., Loader], uninterrupted: list[Arrays]
) -> None:
    orders = [ORDER, replace(ORDER, seed=4), replace(ORDER, batch_size=5)]
    expected = [uninterrupted[:6], *(take(make(order)) for order in orders[1:])]
    loaders = [make(order) for order in orders]
    turns = [iter(loader) for loader in loaders]
    found: list[list[Arrays]] = [[] for _ in orders]
    for _ in range(6):
        for turn, batches in zip(turns, found, strict=True):
            batches += [arrays(batch) for batch in islice(turn, 1)]
    for one, two in zip(found, expected, strict=True):
        assert_equal(one, two)
