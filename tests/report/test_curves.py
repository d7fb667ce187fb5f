from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from ppcls.report.curves import Curves, draw_curves
from ppcls.report.jsonlines import JsonLines
from ppcls.report.record import EvalRecord, StepRecord

Run = Callable[[int], list[StepRecord | EvalRecord]]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def check_picture(path: Path) -> None:
    with Image.open(path) as image:
        image.load()
        assert image.size == (1440, 900)
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10


def test_any_number_of_records_draws(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "curves.png"
    all_records = run(3)
    steps = [each for each in all_records if isinstance(each, StepRecord)]
    evals = [each for each in all_records if isinstance(each, EvalRecord)]
    for records in ([], all_records, steps[:1], evals[:1], steps, evals):
        draw_curves([*records], path)
        check_picture(path)
    assert list(tmp_path.iterdir()) == [path]


def test_odd_values_draw(tmp_path: Path, step: StepRecord, evaluation: EvalRecord) -> None:
    nan = replace(
        step,
        loss=math.nan,
        metrics={"top1": math.nan},
        learning_rate=math.nan,
        images_per_second=math.nan,
        data_wait=math.nan,
    )
    draw_curves([nan], tmp_path / "nan.png")
    draw_curves([nan, step, nan, replace(evaluation, metrics={})], tmp_path / "some.png")
    draw_curves([replace(step, metrics={"a$_^": 1.0})], tmp_path / "name.png")
    check_picture(tmp_path / "nan.png")


def test_gaps_are_counted_and_what_is_between_them_is_seen(
    tmp_path: Path, step: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, save = list[Figure](), Figure.savefig

    def keep(figure: Figure, *where: Any, **how: Any) -> None:
        drawn.append(figure)
        save(figure, *where, **how)

    monkeypatch.setattr(Figure, "savefig", keep)
    nan = replace(step, loss=math.nan)
    draw_curves([step, nan, step, nan, step, step], tmp_path / "curves.png")
    axes = drawn[0].axes[0]
    assert axes.lines[0].get_markevery() == [0, 2]
    assert axes.get_title("right") == "Gaps: no finite loss in 2 of 6 training records."
    draw_curves([step, step], tmp_path / "curves.png")
    assert drawn[1].axes[0].lines[0].get_marker() == "None"


def test_draws_after_an_evaluation_and_at_the_end(
    tmp_path: Path, step: StepRecord, evaluation: EvalRecord
) -> None:
    records, picture = JsonLines(tmp_path / "metrics.jsonl"), tmp_path / "curves.png"
    curves = Curves(tmp_path / "metrics.jsonl", picture)
    records.train(step)
    curves.train(step)
    assert not picture.exists()
    records.evaluation(evaluation)
    curves.evaluation(evaluation)
    check_picture(picture)
    picture.unlink()
    curves.close()
    assert not picture.exists(), "nothing new"
    curves.train(step)
    curves.close()
    check_picture(picture)
    records.close()


def test_a_run_without_records_needs_no_picture(tmp_path: Path, evaluation: EvalRecord) -> None:
    curves = Curves(tmp_path / "none.jsonl", tmp_path / "curves.png")
    curves.close()
    assert not (tmp_path / "curves.png").exists()
    curves.evaluation(evaluation)
    check_picture(tmp_path / "curves.png")
