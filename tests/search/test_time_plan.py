"""The plan of a run that ends in time: properties of the plan, and figures of a dry run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.cli.train import train
from ppcls.engine.dry_run import DryRun, DryRunFigures
from ppcls.errors import UserError
from ppcls.search.time_plan import Measured, plan_run, read_duration, read_measured, time_limit

SECONDS = st.floats(0.01, 1e4)
MEASURED = st.builds(
    Measured, st.integers(1, 50_000), SECONDS, SECONDS, st.booleans(), st.just(0.0), st.floats(1, 60)
)


@given(MEASURED, st.floats(1, 1e5), st.integers(1, 100), st.sampled_from([32, 64, 224, 384]), st.booleans())
def test_a_plan_ends_in_time_or_the_error_names_the_time(
    measured: Measured, seconds: float, classes: int, side: int, resizable: bool
) -> None:
    try:
        plan = plan_run(measured, seconds, classes, side, resizable=resizable)
    except UserError:
        smallest = 0.25 if resizable else 1
        assert (measured.epoch + measured.evaluation) * smallest + measured.start > 0.1 * seconds
        return
    assert plan.seconds <= seconds
    assert 1 <= plan.epochs <= 100
    assert plan.side == side or (resizable and 64 <= plan.side < side)
    assert measured.pretrained or not plan.head
    assert plan.describe()


@pytest.mark.parametrize(
    ("seconds", "pretrained", "images", "expected"),
    [
        (
            635,
            True,
            1000,
            "50 epochs of training with 224 x 224 pixels, about 510 s, because the time suffices",
        ),
        (120, True, 1000, "17 epochs of training with 160 x 160 pixels"),
        (635, True, 100, "a head on frozen features with 224 x 224 pixels"),
        (635, False, 100, "50 epochs of training with 224 x 224 pixels"),
        (50, True, 300, "a head on frozen features with 224 x 224 pixels"),
        (20, True, 100, "a head on frozen features with 128 x 128 pixels"),
        (60, False, 1000, "12 epochs of training with 128 x 128 pixels"),
        (
            16,
            False,
            1000,
            "1 epoch of training with 128 x 128 pixels, about 13 s, because only 1 epoch fits",
        ),
    ],
)
def test_plans(seconds: float, pretrained: bool, images: int, expected: str) -> None:
    plan = plan_run(Measured(images, 8.0, 2.0, pretrained, 30.0, 10.0), seconds, 10, 224, resizable=True)
    assert plan.describe().startswith(f"plan: {expected}")


def test_too_little_time_is_an_error_with_the_time_that_is_needed() -> None:
    with pytest.raises(UserError, match=r"into the 11 s that are left .* at least 14 s; choose more time"):
        plan_run(Measured(1000, 8.0, 2.0, False, 30.0, 10.0), 11.0, 10, 224, resizable=True)


@given(st.floats(1e-4, 100), st.floats(1e-4, 1000), st.integers(1, 500), st.booleans(), st.booleans())
def test_figures_of_a_dry_run_are_read(
    fed: float, evaluation: float, updates: int, evaluated: bool, pretrained: bool
) -> None:
    figures = DryRunFigures(
        fed, 0.0, 16, fed, 16, 1e9, evaluation if evaluated else None, updates, updates, 1
    )
    measured = read_measured(DryRun("", figures, 16 * updates, 2.5, pretrained).as_json(), 3.0)
    assert measured == Measured(
        16 * updates, figures.training_seconds, evaluation if evaluated else 0.0, pretrained, 3.0, 2.5
    )
    assert measured.epoch + measured.evaluation == pytest.approx(figures.seconds)


@given(st.floats(1, 1e5))
def test_the_limit_of_a_run_leaves_time_for_the_report(seconds: float) -> None:
    assert 1 <= time_limit(seconds) <= max(1, seconds - 10)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0m", "-1m", "m", "1e3s", "10 m"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as"):
        read_duration(text)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--time", "10"], "expected a duration such as"),
        (["--time", "10m", "--epochs", "3"], "not allowed with --epochs"),
        (["--time", "10m", "--head"], "not allowed with --epochs and --head"),
        (["--time", "10m", "--dry-run"], "expected a new training run"),
        (["--figures", "figures.json"], "expected --dry-run"),
    ],
)
def test_contradictory_options(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train(["pictures", *more])
    assert message in capsys.readouterr().err
