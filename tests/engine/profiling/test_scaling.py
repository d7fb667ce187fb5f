"""The line about scaling: its figures, its cause, and a training that does not change."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from launched_run import SUPPORT, run

from ppcls.engine.advice import RankFeed, advise_ranks
from ppcls.engine.profiling.scaling import (
    DATA,
    EXCHANGE,
    OTHER,
    UNEQUAL,
    Scaling,
    choose_samples,
    measured_scaling,
)

RUN = SUPPORT / "scaling_run.py"
LINE = re.compile(
    r"scaling: (\d+) ranks train ([\d,.]+) images/s, (\d+)% of the ([\d,.]+) .* lost: (.*?)(;.*)?$"
)
TIMES = st.floats(1e-4, 10)


def times(*shape: int) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.float64, shape, elements=TIMES)


@given(st.data(), st.integers(2, 5), st.integers(1, 4))
def test_shares_add_up_to_one(data: st.DataObject, ranks: int, samples: int) -> None:
    seconds, waiting = data.draw(times(ranks)), data.draw(times(ranks))
    own, exchange = data.draw(times(ranks, samples)), data.draw(times(ranks, samples))
    found = measured_scaling(seconds, waiting, 8.0, own, exchange)
    assert all(loss >= 0 for loss in found.losses.values())
    assert found.share + sum(found.losses.values()) == pytest.approx(1)
    assert found.rate == pytest.approx(8 / seconds.mean())


# Updates of 100 ms on two ranks: how long each waits for data, computes, and exchanges.
CASES = {
    "fast": ((0, 0), (98, 98), (2, 2), None),
    "one waits for data": ((40, 0), (58, 58), (2, 2), DATA),
    "both wait for data in turn": ((20, 20), (58, 58), (2, 2), DATA),
    "slow exchange": ((1, 1), (60, 60), (39, 39), EXCHANGE),
    "one computes slowly": ((0, 0), (30, 98), (70, 2), UNEQUAL),
    "slow hooks": ((0, 0), (60, 60), (1, 1), OTHER),
}


@pytest.mark.parametrize("case", CASES)
def test_cause_of_the_largest_loss(case: str) -> None:
    waiting, own, exchange, cause = CASES[case]
    per_rank = [np.array(values, float) for values in (waiting, own, exchange)]
    found = measured_scaling(
        np.array([100.0, 100.0]), per_rank[0], 1.0, per_rank[1][:, None], per_rank[2][:, None]
    )
    assert found.cause == cause
    assert found.slowest == int(own[1] > own[0])


@given(st.integers(0, 3000))
def test_samples_follow_ordinary_updates(updates: int) -> None:
    samples = choose_samples(updates)
    chosen = [update for update in range(updates) if update in samples]
    assert len(chosen) <= max(1, updates) / 4
    assert bool(chosen) == (updates >= 16)
    assert sum(map(samples.ends_with, chosen)) == len(range(samples.first, updates, samples.period)) or (
        not chosen or updates % samples.period < samples.first + samples.count
    )
    assert not any(samples.precedes(update) for update in chosen)
    measured = [update for update in range(samples.warm_up, updates) if samples.precedes(update)]
    assert not chosen or 3 <= len(measured[: samples.first - samples.warm_up]) <= 50
    assert samples.warm_up == 50 or updates < 200


FEED = {"by_dali": True, "dali_can": True, "can_share": True, "cores": 8, "workers": 4}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"decodes": True, "caches": False},
            "decode_on=both, or keep the decoded images (DataLoader.Train.cache",
        ),
        ({"decodes": True, "caches": True}, "use more CPU cores per process;"),
        (
            {"decodes": False, "caches": False, "by_dali": False},
            "set Global.use_dali=True, or raise DataLoader",
        ),
        (
            {"decodes": True, "caches": False, "by_dali": False, "dali_can": False},
            "num_workers from 4 to 8, or keep the decoded images",
        ),
    ],
)
def test_hint_for_data_is_possible(changes: dict[str, bool], text: str) -> None:
    hints = advise_ranks(RankFeed(**(FEED | changes)))
    assert text in hints[DATA]
    assert hints.keys() == {DATA, EXCHANGE, UNEQUAL, OTHER}
    scaling = Scaling(4, 1000.0, 0.5, {DATA: 0.4, EXCHANGE: 0.1, UNEQUAL: 0.0, OTHER: 0.0}, 3)
    assert scaling.describe(hints).endswith(f"; {DATA} limits the speed: {hints[DATA]}")


def train(
    make_yaml: Callable[..., Path], ranks: int, monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any
) -> tuple[float, dict[str, int], str]:
    """Trains 32 updates. Returns the share, the losses in percent by cause, and the end of the line."""
    monkeypatch.syspath_prepend(str(SUPPORT))
    settings = {
        "Arch__name": "Slow",
        "Global__device": "cpu",
        "Global__epochs": 8,
        "Global__eval_during_train": False,
        "Global__use_dali": False,
        "DataLoader__Train__sampler__batch_size": 8 // ranks,
    }
    config = make_yaml(name, **(settings | changes))
    run(RUN, "-c", str(config), ranks=ranks, logs=config.parent / f"log-{name}")
    log = (config.parent / name / "train.log").read_text()
    lines = [line for line in log.splitlines() if "scaling:" in line]
    assert len(lines) == 1, log
    match = LINE.search(lines[0])
    assert match, lines[0]
    assert int(match[1]) == ranks
    losses = {cause: int(share) for share, cause in re.findall(r"(\d+)% ([^,;]+)", match[5])}
    return int(match[3]) / 100, losses, match[6] or ""


@pytest.mark.slow
def test_two_ranks_of_which_one_waits_for_data(
    make_yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOW", "1:data")
    share, losses, end = train(make_yaml, 2, monkeypatch, "run")
    assert share < 0.5
    assert losses[DATA] == max(losses.values())
    assert "waiting for data limits the speed: " in end


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("captured", ["", "1"], ids=["DataParallel", "captured"])
def test_cause_in_runs(
    make_yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, ranks: int, captured: str
) -> None:
    monkeypatch.setenv("CAPTURED", captured)
    for slow, cause in ((f"{ranks - 1}:forward", UNEQUAL), ("0,1:data", DATA)):
        monkeypatch.setenv("SLOW", slow)
        _, losses, end = train(
            make_yaml, ranks, monkeypatch, f"run-{cause.split()[0]}", Global__update_freq=2
        )
        assert losses[cause] == max(losses.values()), losses
        assert end.startswith(f"; {cause}")
        assert (f"(rank {ranks - 1})" in end) == (cause == UNEQUAL)
