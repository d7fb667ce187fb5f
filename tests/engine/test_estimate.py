"""From a dry run's figures to the whole run's time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ppcls.engine.dry_run import UPDATES, DryRunFigures, _short_epochs, describe

FOUND = DryRunFigures(
    fed=0.5,
    waited=0.05,
    fed_images=256,
    alone=0.4,
    alone_images=256,
    loader=1000.0,
    evaluation=12.0,
    updates=1000,
    full_updates=1000.0,
    evaluations=4,
)


def test_steps_and_evaluations_add_up() -> None:
    assert FOUND.seconds == pytest.approx(1000 * 0.5 + 4 * 12)
    assert replace(FOUND, evaluation=None, evaluations=0).seconds == pytest.approx(500)
    assert replace(FOUND, updates=0, full_updates=0.0, evaluations=0).seconds == 0


def test_estimate_of_partial_update_is_shorter() -> None:
    assert replace(FOUND, full_updates=10.5).seconds == pytest.approx(10.5 * 0.5 + 4 * 12)


def test_estimate_ignores_prefetched_batches_of_slow_loader() -> None:
    assert replace(FOUND, loader=128.0).seconds == pytest.approx(1000 * 2.0 + 4 * 12)


@pytest.mark.parametrize(
    ("updates", "measured", "noted"),
    [(UPDATES - 1, UPDATES, True), (UPDATES, UPDATES, False), (1, 1, False)],  # one of slow updates
)
def test_epochs_shorter_than_the_measured_updates_are_noted(updates: int, measured: int, noted: bool) -> None:
    state: Any = SimpleNamespace(updates_per_epoch=updates)
    assert bool(_short_epochs(state, measured)) == noted


def test_describe_returns_documented_lines() -> None:
    assert describe(FOUND) == [
        "speed         512 images/s, with the loader: 500.0 ms per update of 256 images",
        "data wait     10% of an update",
        "training only 640 images/s, repeating one batch",
        "loader only   1000 images/s",
        "whole run     0:09:08 (h:mm:ss) for 1,000 updates and 4 evaluations of 12.0 s; without checkpoints",
    ]
    assert describe(replace(FOUND, evaluation=None, evaluations=0))[-1] == (
        "whole run     0:08:20 (h:mm:ss) for 1,000 updates; without checkpoints"
    )
