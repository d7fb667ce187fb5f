from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from report_records import EVALUATION, STEP, make_records

from ppcls.report.charts import (
    MAX_POINTS,
    Chart,
    CurvesPicture,
    build_charts,
    describe_gaps,
    draw_charts,
    thin,
)
from ppcls.report.history import History
from ppcls.report.record import EvalRecord, Outcomes, StepRecord

NAN = replace(STEP, loss=math.nan)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collects the figures that are saved."""
    figures, save = list[Figure](), Figure.savefig

    def keep(figure: Figure, *where: Any, **how: Any) -> None:
        figures.append(figure)
        save(figure, *where, **how)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def check_picture(path: Path) -> None:
    with Image.open(path) as image:
        image.load()
        assert image.width == 1440
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10


def by_label(chart: Chart) -> dict[str, tuple[list[float], list[float | None]]]:
    return {curve.label: (curve.x, curve.y) for curve in chart.curves}


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=200), st.integers(3, 50))
def test_thin_keeps_order_extremes_and_gaps(values: list[float], max_points: int) -> None:
    x, y = thin([(float(place), value) for place, value in enumerate(values)], max_points)
    assert len(x) == len(y) <= max_points
    assert x == sorted(set(x))
    np.testing.assert_array_equal([values[int(place)] for place in x], y)
    assert np.isnan(y).any() == np.isnan(values).any()
    if not np.isnan(values).all():
        assert (np.nanmin(y), np.nanmax(y)) == (np.nanmin(values), np.nanmax(values))
    if len(values) <= max_points:
        np.testing.assert_array_equal(y, values)


def test_build_charts_returns_one_chart_per_measure() -> None:
    charts = {chart.title: chart for chart in build_charts(make_records(2))}
    assert list(charts) == ["Loss", "top1", "top5", "Learning rate", "Throughput", "Data wait"]
    assert by_label(charts["Loss"]) == {
        "train": ([0.5, 1.0, 1.5, 2.0], [1 / 45, 1 / 90, 1 / 135, 1 / 180]),
        "eval": ([1.0, 2.0], [EVALUATION.loss] * 2),
    }
    assert [curve.dots for curve in charts["Loss"].curves] == [False, True]
    assert by_label(charts["top1"])["best"] == ([2.0], [0.9861])
    assert list(by_label(charts["top5"])) == ["eval"], "training has no top5"
    assert by_label(charts["Data wait"])["% of the time"][1] == [3.0, 3.0, 3.0, 3.0]


def test_build_charts_omits_charts_without_finite_values() -> None:
    nan = replace(STEP, loss=math.nan, metrics={"top1": math.inf})
    charts = build_charts([nan, replace(EVALUATION, loss=math.inf, metrics={})])
    assert [chart.title for chart in charts] == ["Learning rate", "Throughput", "Data wait"]
    assert build_charts([]) == []


def test_nonfinite_loss_is_a_gap_and_counted() -> None:
    records = [replace(record, step=step) for step, record in ((9, STEP), (18, NAN), (27, STEP), (36, NAN))]
    loss = build_charts(records)[0].curves[0]
    assert (loss.x, loss.y) == ([2.1, 2.2, 2.3, 2.4], [STEP.loss, None, STEP.loss, None])
    assert describe_gaps(History(records)) == "Gaps: no finite loss in 2 of 4 training records."
    infinite = [*records, EVALUATION, replace(EVALUATION, loss=math.inf)]
    assert describe_gaps(History(infinite)).endswith(" in 2 of 4 training records and 1 of 2 evaluations.")
    assert describe_gaps(History([STEP, EVALUATION])) == describe_gaps(History()) == ""


def test_build_charts_long_run_has_bounded_points() -> None:
    records = [
        replace(STEP, epoch=1 + place // 90, step=1 + place % 90, loss=100.0 if place == 777 else 1.0)
        for place in range(3 * MAX_POINTS)
    ]
    loss = build_charts(records)[0].curves[0]
    assert len(loss.x) <= MAX_POINTS
    assert max(value for value in loss.y if value is not None) == 100.0


@pytest.mark.parametrize(
    ("losses", "top", "note"),
    [
        ([1e4, *np.linspace(2, 1, 20)], 2.0, "Shown up to 2; 1 point is higher, up to 1e+04."),
        ([*np.linspace(7, 1, 20)], None, ""),
        ([1.0] * 20, None, ""),
        ([3.0], None, ""),
    ],
)
def test_loss_chart_hides_only_far_outliers(
    tmp_path: Path, drawn: list[Figure], losses: list[float], top: float | None, note: str
) -> None:
    records = [replace(STEP, epoch=epoch, loss=loss) for epoch, loss in enumerate(losses, start=1)]
    chart = build_charts(records)[0]
    assert (chart.top, chart.note) == (top, note)
    draw_charts(records, tmp_path / "curves.png")
    axes = drawn[0].axes[0]
    assert axes.get_title("right") == note
    if top is not None:
        assert axes.get_ylim() == (pytest.approx(0.95), top)


def test_draw_charts_accepts_any_records(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    records = make_records(3)
    steps = [record for record in records if isinstance(record, StepRecord)]
    evals = [record for record in records if isinstance(record, EvalRecord)]
    for group in ([], records, steps[:1], evals[:1]):
        draw_charts([*group], path)
        check_picture(path)
    assert list(tmp_path.iterdir()) == [path]


def test_draw_charts_accepts_nan_and_any_metric_name(tmp_path: Path) -> None:
    values = dict.fromkeys(("loss", "learning_rate", "images_per_second", "data_wait"), math.nan)
    nan = replace(STEP, metrics={"top1": math.nan}, **values)
    draw_charts([nan], tmp_path / "nan.png")
    check_picture(tmp_path / "nan.png")
    draw_charts([nan, STEP, nan, replace(EVALUATION, metrics={"a$_^": 1.0})], tmp_path / "some.png")


def test_draw_charts_marks_points_between_gaps_and_whole_epochs(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [replace(STEP, epoch=1, step=step) for step in (10, 20, 30)]
    draw_charts(records, tmp_path / "curves.png")
    axes = drawn[0].axes[0]
    assert axes.lines[0].get_marker() == "None"
    assert all(tick == round(tick) for tick in axes.get_xticks())
    draw_charts([STEP, NAN, STEP, NAN, STEP, STEP], tmp_path / "curves.png")
    axes = drawn[1].axes[0]
    assert axes.lines[0].get_markevery() == [0, 2]
    assert axes.get_title("right") == "Gaps: no finite loss in 2 of 6 training records."


@pytest.mark.usefixtures("drawn_curves")
def test_curves_picture_without_records_writes_no_file(tmp_path: Path) -> None:
    CurvesPicture(tmp_path / "curves.png", make_records(1)).close()
    assert not (tmp_path / "curves.png").exists()


@pytest.mark.usefixtures("drawn_curves")
def test_curves_picture_is_drawn_once_per_minute_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("ppcls.report.charts.time.monotonic", lambda: now)
    path = tmp_path / "curves.png"
    curves = CurvesPicture(path)
    curves.record(EVALUATION)
    assert not path.exists()
    now = 60.0
    curves.record(EVALUATION)
    curves._wait()
    check_picture(path)
    path.unlink()
    now = 119.0
    curves.record(EVALUATION)
    assert not path.exists()
    curves.close()
    check_picture(path)
    path.unlink()
    curves.close()
    assert not path.exists(), "nothing new"


def test_short_record_at_the_end_of_an_epoch_is_merged() -> None:
    step = next(record for record in make_records(1) if isinstance(record, StepRecord))
    values = [(1, 10, 1.0), (1, 20, 1.0), (1, 21, 4.3), (2, 31, 0.5), (2, 41, 0.7), (2, 42, 0.7)]
    steps = [
        replace(step, epoch=epoch, step=(update - 1) % 21 + 1, steps_per_epoch=21, update=update, loss=loss)
        for epoch, update, loss in values
    ]
    (curve,) = build_charts(steps)[0].curves
    assert curve.x == pytest.approx([10 / 21, 1, 1 + 10 / 21, 2])
    assert curve.y == pytest.approx([1.0, 1.3, 0.5, 0.7])


def test_speed_of_a_short_record_is_that_of_the_whole_time() -> None:
    step = next(record for record in make_records(1) if isinstance(record, StepRecord))
    steps = [
        replace(step, epoch=1, step=10, steps_per_epoch=11, update=10, images=160, images_per_second=10.0),
        replace(step, epoch=1, step=11, steps_per_epoch=11, update=11, images=5, images_per_second=1.25),
    ]
    steps = [replace(steps[0], data_wait=0.5), replace(steps[1], data_wait=1.0)]
    charts = {chart.title: chart.curves[0].y for chart in build_charts(steps)}
    assert charts["Throughput"] == pytest.approx([165 / 20])
    assert charts["Data wait"] == pytest.approx([100 * (16 * 0.5 + 4) / 20])
    stopped = [steps[0], replace(steps[1], images_per_second=0.0)]
    assert {chart.title: chart.curves[0].y for chart in build_charts(stopped)}["Throughput"] == [0]


def test_points_are_weighted_by_images_and_long_ones_stay_apart() -> None:
    step = next(record for record in make_records(1) if isinstance(record, StepRecord))
    values = [(1, 32, 1.0), (2, 32, 2.0), (3, 4, 11.0), (4, 32, 3.0), (5, 20, 4.0), (6, 4, 10.0)]
    steps = [
        replace(step, epoch=1, step=update, steps_per_epoch=6, update=update, loss=loss, images=images)
        for update, images, loss in values
    ]
    (curve,) = build_charts(steps)[0].curves
    assert curve.x == pytest.approx([1 / 6, 3 / 6, 4 / 6, 1], abs=1e-5)
    assert curve.y == pytest.approx([1.0, 3.0, 3.0, 5.0])
    mean = sum(images * loss for _, images, loss in values) / sum(images for _, images, _ in values)
    assert np.average(curve.y, weights=[32, 36, 32, 24]) == pytest.approx(mean)


@pytest.mark.usefixtures("drawn_curves")
def test_the_picture_has_the_line_of_the_most_frequent_class(tmp_path: Path, drawn: list[Figure]) -> None:
    confusion = np.array([[5, 1], [1, 1]])
    outcomes = Outcomes(confusion=confusion, confidences=np.zeros((2, 100), np.int64), mistakes=())
    picture = CurvesPicture(tmp_path / "curves.png")
    for record in (STEP, replace(EVALUATION, outcomes=outcomes)):
        picture.record(record)
    picture.close()
    lines = {line.get_label(): line for axes in drawn[0].axes for line in axes.get_lines()}
    assert list(lines["most frequent class"].get_ydata()) == [0.75, 0.75]


def test_top1_is_explained_and_compared_with_the_most_frequent_class() -> None:
    charts = {chart.title: chart for chart in build_charts(make_records(2), majority=0.6)}
    assert charts["top1"].note == "Share of the images whose most probable class is right."
    assert charts["top1"].curves[-1].label == "most frequent class"
    assert charts["top1"].curves[-1].y == [0.6, 0.6]
    assert charts["Throughput"].from_zero
