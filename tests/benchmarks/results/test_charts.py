"""Charts: their data, which follows from the rows, and pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_results import RESULTS
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks.results.chart_data import Chart, MetricChart, StackedChart, find_best, make_charts, with_unit
from benchmarks.results.charts import describe_marks, draw, draw_pictures, to_picture, whiskers
from ppcls.bench.results.schema import Label, Quantity, ResultRow, Results, kinds_of_rows

# The metrics and labels of each benchmark that has results, with two rounds.
KINDS: dict[str, list[ResultRow]] = {
    "train": [
        ResultRow(
            {"processes": count, "precision": precision, "batch size": 32},
            {
                "time": Quantity((8.0 / count, 9.0 / count), "s for 10 epochs", "less"),
                "images/s": Quantity((1000.0 * count, 900.0 * count), "images/s"),
                "of baseline": Quantity((1.0 * count, 1.1 * count), ""),
            },
        )
        for count in (1, 2)
        for precision in ("float32", "O1")
    ],
    "phases": [
        ResultRow(
            {"processes": count, "of": "phases of a step"},
            {name: Quantity((5.0, 6.0), "ms", "less") for name in ("data", "forward", "backward")},
        )
        for count in (1, 2)
    ],
    "run": [
        ResultRow({"part": part}, {"time": Quantity((seconds, seconds), "s", "less")})
        for part, seconds in (("start-up", 2.0), ("training", 7.0), ("whole run", 9.0))
    ],
    "loader": [
        *(
            ResultRow({"backend": "DALI", "workers": count}, {"images/s": Quantity((9.0, 8.0), "images/s")})
            for count in (1, 2)
        ),
        ResultRow({"setting": "best found", "of": "DALI"}, {"images/s": Quantity((8.0, 8.0), "images/s")}),
        *(
            ResultRow({"up to": stage, "of": "DALI"}, {"images/s": Quantity((rate, rate), "images/s")})
            for stage, rate in (("disk", 40.0), ("decode", 20.0), ("transform", 10.0))
        ),
    ],
    "storage": [
        ResultRow(
            {"storage": folder, "loader": "DALI CPU"},
            {
                "disk": Quantity((500.0, 600.0), "MB/s"),
                "read, cold": Quantity((50.0, 60.0), "images/s"),
                "loader, cold": Quantity((20.0, 30.0), "images/s"),
            },
        )
        for folder in ("/hdd", "/ssd")
    ],
    "improvement": [
        ResultRow(
            {"work": "read only", "loader": loader, "workers or threads": count},
            {
                "images/s": Quantity((90.0, 80.0), "images/s"),
                "improvement": Quantity((-5.0, 40.0), "% less time"),
            },
        )
        for loader in ("DALI", "paddle.io")
        for count in (1, 2)
    ],
    "requests": [
        ResultRow({"server": "plain", "clients": count}, {"p50": Quantity((4.0,), "ms", "less")})
        for count in (1, 8)
    ],
}


def results_of(*rows: ResultRow) -> Results:
    return replace(
        RESULTS,
        rows=rows,
        config="DataLoader: {Train: {sampler: {batch_size: 7}}}",
        subject="configs/some.yaml",
        machine={"Device": "CPU", "Processor": "some processor", "Cores per process": "2"},
    )


ALL_CHARTS: list[tuple[Chart, Results]] = [
    (chart, results)
    for rows in KINDS.values()
    for results in [results_of(*rows)]
    for chart in make_charts(results)
]


def metric_charts(results: Results) -> list[MetricChart]:
    charts = make_charts(results)
    assert all(isinstance(chart, MetricChart) for chart in charts)
    return [chart for chart in charts if isinstance(chart, MetricChart)]


def charts_of(*labels: dict[str, Label]) -> list[MetricChart]:
    rows = tuple(ResultRow(each, {"images/s": Quantity((1.0,), "images/s")}) for each in labels)
    return metric_charts(replace(RESULTS, rows=rows))


def test_make_charts_each_varied_label_is_an_axis() -> None:
    both = [{"batch": batch, "engine": engine, "device": "cpu"} for batch in (8, 1) for engine in "ab"]
    by_batch, by_engine = charts_of(*both)
    assert (by_batch.x, by_batch.numeric, by_batch.values) == ("batch", True, [1, 8])
    assert {name: list(points) for name, points in by_batch.series.items()} == {"a": [8, 1], "b": [8, 1]}
    assert (by_engine.x, by_engine.numeric, by_engine.values) == ("engine", False, ["a", "b"])
    assert list(by_engine.series) == ["8", "1"]


def test_make_charts_tour_fixes_the_other_axes() -> None:
    base: dict[str, Label] = {"precision": "O2", "layout": "NHWC"}
    found = charts_of(base, base | {"precision": "O1"}, base | {"layout": "NCHW"})
    assert [(each.x, each.values) for each in found] == [
        ("precision", ["O2", "O1"]),
        ("layout", ["NHWC", "NCHW"]),
    ]


def test_make_charts_rows_that_differ_in_several_labels_are_bars() -> None:
    (chart,) = charts_of(
        {"framework": "Paddle", "precision": "O2"}, {"framework": "PyTorch", "precision": "O1"}
    )
    assert (chart.x, chart.values) == ("framework, precision", ["Paddle, O2", "PyTorch, O1"])


def test_make_charts_rows_without_values_or_comparison_are_not_drawn() -> None:
    backend, threads, stage = metric_charts(RESULTS)
    assert backend.series["2"].keys() == {"DALI", "paddle.io $x"}
    assert threads.series["DALI"].keys() == {1, 2}
    assert "paddle.io $x" not in threads.series, "a single point is no line"
    assert stage.values == ["disk", "decode"]
    assert make_charts(replace(RESULTS, rows=RESULTS.rows[:1])) == []


def test_make_charts_booleans_are_not_numbers() -> None:
    (chart,) = charts_of({"amp": True}, {"amp": False})
    assert not chart.numeric


@pytest.mark.parametrize(("chart", "results"), ALL_CHARTS, ids=lambda value: getattr(value, "words", ""))
def test_every_chart_has_title_axes_legend_and_caption(chart: Chart, results: Results) -> None:
    figure = draw(chart, results)
    (axes,) = figure.axes
    title = axes.get_title(loc="left")
    batch = "batch size: 32" if "batch size" in results.rows[0].labels else "batch size: 7 per process"
    for fact in ("configs/some.yaml", "CPU: some processor (2 cores)", batch, " round", "2026-01-02"):
        assert fact in title.replace("\n", " ")
    caption = figure.get_supxlabel()
    assert "tools/benchmark.py loader" in caption
    assert axes.get_ylabel()
    rounds = max(len(quantity.values) for quantity in chart.quantities)
    assert ("medians" in caption) == (rounds > 1)
    assert ("whiskers: range" in caption) == (rounds > 1 and isinstance(chart, MetricChart))
    if isinstance(chart, StackedChart):
        assert axes.get_yscale() == "linear"
        bars: Sequence[Any] = axes.patches
        assert not axes.collections, "no whiskers"
        assert sum(bar.get_height() for bar in bars) == pytest.approx(
            sum(quantity.median for quantity in chart.quantities)
        )
    else:
        assert axes.collections, "each series has whiskers, which are empty for one round"
    if isinstance(chart, StackedChart) or len(chart.series) > 1:
        legend = axes.get_legend()
        assert legend is not None
        assert legend.get_title().get_text()


def test_every_kind_of_rows_has_a_chart_with_its_best_row() -> None:
    for rows in KINDS.values():
        results = results_of(*rows)
        shown = [chart for chart in make_charts(results) if isinstance(chart, MetricChart)]
        for kind in kinds_of_rows(rows):
            for chart in shown:
                own = [row for row in kind if chart.metric in row.metrics]
                if own and own[0].metrics[chart.metric] in chart.quantities:
                    assert find_best(chart.metric, own).metrics[chart.metric] in chart.quantities


@given(st.lists(st.tuples(*[st.sampled_from((1, 2, 3))] * 3, st.floats(1, 1e4)), min_size=2, max_size=8))
def test_best_setting_is_in_every_chart_and_every_setting_in_one(
    table: list[tuple[int, int, int, float]],
) -> None:
    """Sweeps measure irregular sets of settings: no setting may be lost, whatever the others are."""
    rows = [
        ResultRow({"a": a, "b": b, "c": c}, {"images/s": Quantity((rate,), "images/s")})
        for a, b, c, rate in table
    ]
    charts = make_charts(results_of(*rows))
    assert charts
    best = find_best("images/s", rows).metrics["images/s"]
    assert all(best in chart.quantities for chart in charts)
    settings = {tuple(row.labels.values()): row for row in rows}
    for labels in settings:
        same = find_best("images/s", [row for row in rows if tuple(row.labels.values()) == labels])
        assert any(same.metrics["images/s"] in chart.quantities for chart in charts)


def test_single_row_that_is_the_best_of_all_kinds_is_drawn() -> None:
    fastest = ResultRow({"decoder": "whole"}, {"images/s": Quantity((99.0,), "images/s")})
    *_, last = make_charts(results_of(*KINDS["loader"][:2], fastest))
    assert fastest.metrics["images/s"] in last.quantities


def test_stages_of_a_loader_are_the_time_that_each_adds() -> None:
    (stages,) = [
        chart for chart in make_charts(results_of(*KINDS["loader"])) if isinstance(chart, StackedChart)
    ]
    added = {name: each.median for name, (each,) in stages.parts.items() if each is not None}
    assert added == pytest.approx({"disk": 25.0, "decode": 25.0, "transform": 50.0, "hand-over": 25.0})


def test_bars_are_linear_and_negative_values_visible() -> None:
    far = [
        ResultRow({"by": name}, {"images/s": Quantity((rate,), "images/s")})
        for name, rate in (("a", 1.0), ("b", 1e4))
    ]
    (chart,) = make_charts(results_of(*far))
    assert draw(chart, RESULTS).axes[0].get_yscale() == "linear"
    (negative, *_) = (
        chart for chart, _ in ALL_CHARTS if isinstance(chart, MetricChart) and chart.metric == "improvement"
    )
    assert draw(negative, RESULTS).axes[0].get_ylim()[0] < 0


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_to_picture_draws_the_first_series(suffix: str) -> None:
    chart = make_charts(RESULTS)[0]
    data = to_picture(chart, RESULTS, suffix)  # type: ignore[arg-type]
    if suffix == "svg":
        assert b"#1f77b4" in data
        assert data == to_picture(chart, RESULTS, "svg"), "equal results have equal files"
        return
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    assert (pixels == np.array([0x1F, 0x77, 0xB4])).all(axis=-1).sum() > 50


def test_draw_pictures_names_metric_and_axis(tmp_path: Path) -> None:
    draw_pictures(tmp_path, RESULTS)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "01-images-s-by-backend.png",
        "02-images-s-by-threads.png",
        "03-images-s-by-stage.png",
    ]


def test_with_unit_shows_a_metric_named_like_its_unit_once() -> None:
    assert (with_unit("images/s", "images/s"), with_unit("p50", "ms")) == ("images/s", "p50, ms")
    assert with_unit("of paddle.io", "") == "speed, relative to paddle.io"


def test_one_round_has_no_whiskers() -> None:
    below, above = whiskers([Quantity((5.0,), "s"), Quantity((4.0, 5.0, 7.0), "s")])
    np.testing.assert_array_equal(below, [np.nan, 1.0])
    np.testing.assert_array_equal(above, [np.nan, 2.0])


def test_caption_says_that_one_round_has_no_whiskers() -> None:
    (chart,) = make_charts(results_of(*KINDS["requests"]))
    assert describe_marks(chart) == "Points: values of one round, so there are no whiskers."
