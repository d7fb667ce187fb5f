"""Charts: their data, which follows from the rows, and pictures."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from example_results import RESULTS
from PIL import Image

from benchmarks.results.charts import (
    MetricChart,
    describe_results,
    draw_pictures,
    make_charts,
    to_png,
    whiskers,
    with_unit,
)
from ppcls.bench.results.schema import Label, Quantity, ResultRow


def charts_of(*labels: dict[str, Label]) -> list[MetricChart]:
    rows = tuple(ResultRow(each, {"images/s": Quantity((1.0,), "images/s")}) for each in labels)
    return make_charts(replace(RESULTS, rows=rows))


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
    backend, threads, stage = make_charts(RESULTS)
    assert backend.series["2"].keys() == {"DALI", "paddle.io $x"}
    assert threads.series["DALI"].keys() == {1, 2}
    assert "paddle.io $x" not in threads.series, "a single point is no line"
    assert stage.values == ["disk", "decode"]
    assert make_charts(replace(RESULTS, rows=RESULTS.rows[:1])) == []


def test_make_charts_booleans_are_not_numbers() -> None:
    (chart,) = charts_of({"amp": True}, {"amp": False})
    assert not chart.numeric


@pytest.mark.parametrize("chart", make_charts(RESULTS), ids=lambda chart: str(chart.x))
def test_to_png_draws_the_first_series(chart: MetricChart) -> None:
    with Image.open(io.BytesIO(to_png(chart, describe_results(RESULTS)))) as picture:
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


def test_one_round_has_no_whiskers() -> None:
    below, above = whiskers([Quantity((5.0,), "s"), Quantity((4.0, 5.0, 7.0), "s")])
    np.testing.assert_array_equal(below, [np.nan, 1.0])
    np.testing.assert_array_equal(above, [np.nan, 2.0])


def test_describe_results_names_benchmark_date_command_and_machine() -> None:
    assert describe_results(RESULTS) == (
        "loader, 2026-01-02: tools/benchmark.py loader -c 'my config.yaml'\nProcessor: an <old> one"
    )
