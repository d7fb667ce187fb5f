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
    assert found == pytest.approx(1e-2, rel=0.3)


def test_rising_losses_have_no_suggestion(tmp_path) -> None:
    assert make_test([1.0, 2.0, 3.0]).suggestion is None
    assert "did not fall" in describe_test(make_test([1.0, 2.0, 3.0]), tmp_path / "find_lr.png")
    assert "none: the first loss was non-finite" in describe_test(make_test([]), tmp_path / "find_lr.png")


def noisy_test(seed: int, fall: float, centre: float, width: float, noise: float) -> LearningRateTest:
    """Losses that fall by ``fall`` around the rate ``centre``, and diverge 1.5 decades later."""
    rates = np.geomspace(module.FIRST, module.LAST, module.UPDATES)
    decades = np.log10(rates / centre)
    losses = 2.3 - fall / (1 + np.exp(-decades / width)) + np.exp(3 * (decades - 1.5))
    losses += np.random.default_rng(seed).normal(0, noise, len(losses))
    end = next((number for number, loss in enumerate(losses, 1) if loss > 4 * 2.3), len(losses))
    return LearningRateTest(rates[:end], losses[:end])


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("centre", [1e-4, 1e-3, 1e-2, 0.05])
def test_suggestion_withstands_noise(centre: float, noise: float) -> None:
    errors = []
    for width, fall in ((0.15, 1.0), (0.3, 1.0), (0.3, 2.0)):
        for seed in range(40):
            suggestion = noisy_test(seed, fall, centre, width, noise).suggestion
            if suggestion is not None:
                errors.append(abs(np.log10(suggestion / centre)))
    assert len(errors) > 100  # of 120
    assert np.median(errors) < 0.25  # decades
    assert np.quantile(errors, 0.95) < 0.7
    assert max(errors) < 2.0


def test_no_suggestion_without_a_clear_fall() -> None:
    suggestions = [noisy_test(seed, 0.0, 1e-2, 0.3, 0.2).suggestion for seed in range(300)]
    assert sum(suggestion is not None for suggestion in suggestions) <= 3


def test_suggestion_is_never_one_of_the_first_rates() -> None:
    """The average of two batches hardly smooths, so their noise was the steepest slope."""
    losses = np.full(100, 2.3)
    losses[0] = 4.0
    losses[60:] -= np.linspace(0, 0.8, 40)
    suggestion = LearningRateTest(np.geomspace(1e-6, 10.0, 100), losses).suggestion
    assert suggestion is not None
    assert suggestion > 1e-2


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
