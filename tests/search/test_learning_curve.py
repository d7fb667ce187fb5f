"""The learning curve: parts of the images, the file of the points, and what the report says about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.cli import train as cli
from ppcls.cli.train import train
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.report.html import HtmlReport, RunInfo
from ppcls.report.summary.certainty import Certainty
from ppcls.report.summary.curve import CURVE_FILE, CurvePoint, describe_curve, read_curve, write_curve
from ppcls.search.learning_curve import choose_parts, read_splits, write_part


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(0, 9))
def test_parts_are_nested_and_have_all_classes(labels: list[int], seed: int) -> None:
    array = np.array(labels)
    previous = np.zeros(len(array), np.bool_)
    for chosen in choose_parts(array, seed):
        assert (chosen >= previous).all()
        assert previous.sum() < chosen.sum() < len(array)
        assert set(array[chosen]) == set(labels)
        previous = chosen
    assert len(array) < 2 * len(set(labels)) + 2 or previous.any()


def test_config_of_a_part_is_valid_and_has_its_images(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config()
    indexes = read_splits(config.DataLoader, 4)
    masks = {name: np.arange(len(index)) % 2 == 0 for name, index in indexes.items()}
    file = write_part(config.model_dump(mode="json"), config.DataLoader, indexes, masks, tmp_path / "part")
    part = load_config(str(file), [])
    assert part.Global.output_dir == str(tmp_path / "part")
    for name, index in read_splits(part.DataLoader, 4).items():
        chosen = np.flatnonzero(masks[name]).tolist()
        assert index.labels.tolist() == indexes[name].labels[chosen].tolist()
        assert [index.name(at) for at in range(len(index))] == [indexes[name].name(at) for at in chosen]


@pytest.mark.slow
def test_run_with_a_learning_curve(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    file = make_yaml(Global__use_dali=False, Global__epochs=1, Global__audit_images=0)
    output = tmp_path / "curve"
    assert cli.train(["-c", str(file), "--learning-curve", "--output", str(output)]) == 0
    report = (output / "report.html").read_text()
    assert "Accuracy over the number of training images" in report
    assert [each.images for each in read_curve(output / CURVE_FILE, None)] == sorted(
        int(folder.name.removeprefix("images_")) for folder in (output / "learning_curve").glob("images_*/")
    )


def point(images: int, accuracy: float, width: float = 0.01) -> CurvePoint:
    return CurvePoint(images, accuracy, accuracy - width, accuracy + width)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([point(50, 0.8), point(100, 0.9)], "2 times as many .* from 0.800 to 0.900, so more images help"),
        ([point(50, 0.75, 0.2), point(100, 0.9, 0.2)], "may be chance; more images probably help"),
        ([point(50, 0.9), point(100, 0.9)], "would hardly help"),
        ([point(50, 0.9, 0.1), point(100, 0.89, 0.1)], "may be chance; add validation images"),
        ([point(100, 0.9)], "^$"),
    ],
)
def test_sentence_about_the_curve(points: list[CurvePoint], expected: str) -> None:
    import re

    assert re.search(expected, describe_curve(points))


def test_report_shows_the_stored_curve(tmp_path: Path) -> None:
    write_curve(tmp_path / CURVE_FILE, [point(50, 0.81), point(100, 0.9)], 200)
    points = read_curve(tmp_path / CURVE_FILE, Certainty(0.95, 0.94, 0.96, 500, 0.1, "a"))
    assert [each.images for each in points] == [50, 100, 200]
    text = HtmlReport(tmp_path / "report.html", tmp_path / "events", RunInfo()).render()
    assert "Accuracy over the number of training images" in text
    assert "0.810" in text
    (tmp_path / CURVE_FILE).write_text("{}")
    with pytest.raises(UserError, match="expected a learning curve"):
        read_curve(tmp_path / CURVE_FILE, None)
    assert (
        "expected a learning curve"
        in HtmlReport(tmp_path / "report.html", tmp_path / "events", RunInfo()).render()
    )


def test_contradictory_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train(["pictures", "--learning-curve", "--time", "1m"])
    assert "expected a new training run" in capsys.readouterr().err
