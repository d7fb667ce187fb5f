"""The learning-rate range test."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ppcls.cli import train as cli
from ppcls.engine import find_lr as module
from ppcls.engine.find_lr import LearningRateTest, describe_test


def make_test(losses) -> LearningRateTest:
    return LearningRateTest(np.geomspace(1e-4, 1.0, len(losses)), np.array(losses))


def test_suggestion_is_where_the_smoothed_loss_falls_most() -> None:
    rates = np.geomspace(1e-4, 1.0, 81)
    losses = 2.0 - 1.0 / (1 + np.exp(-4 * np.log(rates / 1e-2))) + (rates > 0.3) * 5
    found = LearningRateTest(rates, losses).suggestion
    assert found is not None
    assert 1e-2 <= found <= 3e-2  # smoothing lags behind


def test_rising_losses_have_no_suggestion(tmp_path) -> None:
    assert make_test([1.0, 2.0, 3.0]).suggestion is None
    assert "did not fall" in describe_test(make_test([1.0, 2.0, 3.0]), tmp_path / "find_lr.png")
    assert "none: the first loss was non-finite" in describe_test(make_test([]), tmp_path / "find_lr.png")


def test_smoothing_starts_at_the_first_loss() -> None:
    np.testing.assert_allclose(make_test([3.0, 3.0, 3.0]).smoothed, 3.0)


@pytest.mark.parametrize("scaled", [False, True])
def test_find_lr_draws_and_suggests_without_training(
    make_yaml, tmp_path, capsys, monkeypatch, scaled
) -> None:
    monkeypatch.setattr(module, "UPDATES", 12)
    changes = {"Global__auto_scale_lr": scaled, "Global__base_batch_size": 80, "Global__use_dali": False}
    config = make_yaml(**changes)
    assert cli.train(["-c", str(config), "--find-lr"]) == 0
    text = capsys.readouterr().out
    # Of 8 images per update, the rates of the config are 10 times those of the optimizer.
    highest = re.search(r"range test: \d+ updates, learning rates up to ([\d.e+-]+); plotted in", text)
    assert highest is not None
    assert 1e-6 < float(highest[1]) <= (100 if scaled else 10)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"find_lr.png"}
