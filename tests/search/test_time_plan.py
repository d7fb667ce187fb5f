"""The plan of a run that ends in time: properties of the plan, and figures of a dry run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ppcls.arch.distillation_model import AnyArch
from ppcls.cli.train import train
from ppcls.engine.autotune import autotune
from ppcls.engine.autotune.autotune import list_open_settings
from ppcls.engine.core.settings import ExecutionSettings
from ppcls.engine.dry_run import DryRun, DryRunFigures
from ppcls.errors import UserError
from ppcls.search.time_plan import Measured, plan_run, read_duration

SECONDS = st.floats(0.01, 1e4)
MEASURED = st.builds(
    Measured,
    images=st.integers(1, 50_000),
    epoch=SECONDS,
    updates=st.integers(1, 3000),
    evaluation=SECONDS,
    features=SECONDS,
    fit=SECONDS,
    can_fit=st.booleans(),
    end=st.floats(4, 60),
    build=st.floats(0.1, 60),
    used=st.floats(1, 100),
)


@given(MEASURED, st.floats(1, 1e5), st.sampled_from([32, 64, 224, 384]), st.booleans())
def test_a_plan_ends_in_time_or_the_error_names_the_time(
    measured: Measured, seconds: float, side: int, resizable: bool
) -> None:
    try:
        plan = plan_run(measured, seconds, side, resizable=resizable)
    except UserError as error:
        match = re.search(r"expected at least (\d+) s", str(error))
        assert match is not None
        assert float(match[1]) >= int(seconds)
        plan = plan_run(measured, float(match[1]) + 1, side, resizable=resizable)
        assert plan.seconds <= float(match[1]) + 1
        return
    assert plan.head == measured.can_fit or "no longer" not in plan.why
    assert plan.seconds <= seconds
    assert 1 <= plan.epochs <= 100
    assert plan.side == side or (resizable and 64 <= plan.side < side)
    assert measured.can_fit or not plan.head
    if not plan.head and "suffices" in plan.why:
        assert plan.epochs >= 10
    assert plan.describe()


@pytest.mark.parametrize(
    ("seconds", "pretrained", "updates", "expected"),
    [
        (
            640,
            True,
            30,
            "54 epochs of training with 224 x 224 pixels, about 573 s in all, because the time suffices",
        ),
        (140, True, 30, "18 epochs of training with 160 x 160 pixels"),
        (300, True, 7, "47 epochs of training with 160 x 160 pixels, about 273 s in all, because larger"),
        (640, False, 2, "54 epochs of training with 224 x 224 pixels"),
        (60, True, 30, "29 epochs of training with 64 x 64 pixels"),
        (39, True, 7, "a head on frozen features with"),
        (
            60,
            True,
            7,
            "a head on frozen features with 224 x 224 pixels, about 47 s in all, because fewer than 300",
        ),
        (60, False, 7, "29 epochs of training with 64 x 64 pixels"),
        (
            36,
            False,
            7,
            "3 epochs of training with 64 x 64 pixels, about 35 s in all, because only 3 epochs fit",
        ),
    ],
)
def test_plans(seconds: float, pretrained: bool, updates: int, expected: str) -> None:
    measured = Measured(1000, 8.0, updates, 2.0, 4.0, 0.3, pretrained, end=10.0, build=2.0, used=21.0)
    plan = plan_run(measured, seconds, 224, resizable=True)
    assert plan.describe().startswith(f"plan: {expected}")


def test_too_little_time_is_an_error_with_the_time_that_is_needed() -> None:
    measured = Measured(1000, 8.0, 7, 2.0, 4.0, 0.3, False, end=10.0, build=2.0, used=21.0)
    with pytest.raises(UserError, match=r"took 21 s, .* within 25 s; expected at least 34 s; choose more"):
        plan_run(measured, 25.0, 224, resizable=True)


@pytest.mark.parametrize("can_fit", [True, False])
def test_the_shortest_run_is_planned_if_none_is_expected_to_fit(can_fit: bool) -> None:
    measured = Measured(1000, 800.0, 7, 200.0, 400.0, 3.0, can_fit, end=10.0, build=2.0, used=21.0)
    plan = plan_run(measured, 60.0, 224, resizable=True)
    assert (plan.head, plan.epochs, plan.side) == (can_fit, 1, 64)
    assert plan.views == (0 if can_fit else None)
    assert plan.seconds <= 60


def test_figures_of_a_dry_run_are_written_as_json() -> None:
    figures = DryRunFigures(1.0, 0.0, 16, 1.0, 16, 1e9, 3.0, 5, 5, 1)
    assert json.loads(DryRun("", figures, 80, 2.5, True).as_json()) == {
        "images": 80,
        "training": 5.0,
        "evaluation": 3.0,
        "pretrained": True,
        "start": 2.5,
    }


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


def test_a_measurement_that_takes_too_long_is_an_error_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((32, 32, 3), 20 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    output = tmp_path / "run"
    options = [
        "--time",
        "1s",
        "--output",
        str(output),
        "--model",
        "MobileNetV3_small_x0_35",
        "--device",
        "cpu",
    ]
    images = str(tmp_path / "pictures")
    assert train([images, *options, "-o", "Arch.pretrained=False", "Global.use_dali=False"])
    assert re.search(r"took \d+ s of 1 s.*choose more time", capsys.readouterr().err)
    assert not output.exists()


def test_defaults_of_the_config_leave_the_kernels_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / name / "1.png")
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / name / "2.png")

    def choose(settings: ExecutionSettings, _process: object, arch: AnyArch, _amp: object) -> None:
        raise UserError(", ".join(list_open_settings(settings, arch)))

    monkeypatch.setattr(autotune, "choose_cpu_kernels", choose)
    options = ["--time", "1h", "--output", str(tmp_path / "run"), "--device", "cpu"]
    assert train([str(tmp_path / "pictures"), *options, "--model", "EfficientNet_lite0"])
    assert "fused_kernels" in capsys.readouterr().err
