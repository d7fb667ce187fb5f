"""Charts: data and pictures."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from example_results import RESULTS
from PIL import Image

from ppcls.bench.results.charts import COLOURS, category_lines, drawings, picture_name, to_png
from ppcls.bench.results.schema import ChartSpec, Quantity, ResultRow


def test_drawings_numeric_x_make_lines_per_series() -> None:
    line, _ = drawings(RESULTS)
    assert (line.title, line.x, line.y, line.categories) == (
        "Speed by threads",
        "threads",
        "throughput, images/s",
        (),
    )
    assert [(series.name, [point.x for point in series.points]) for series in line.series] == [
        ("DALI", [1.0, 2.0]),
        ("paddle.io $x", [2.0]),
    ]


def test_drawings_text_x_makes_categories_in_order() -> None:
    _, bars = drawings(RESULTS)
    assert bars.categories == ("disk", "decode")
    (series,) = bars.series
    assert series.name == ""


def test_category_lines_wrap_long_names() -> None:
    names = [f"ppcls, paddle.io, {count} workers" for count in range(5)]
    rows = tuple(ResultRow({"loader": name}, {"speed": Quantity((1.0,), "")}) for name in names)
    (bars,) = drawings(replace(RESULTS, rows=rows, charts=(ChartSpec("All", "speed", "loader"),)))
    assert category_lines(bars)[0] == ["ppcls,", "paddle.io, 0", "workers"]
    assert category_lines(replace(bars, categories=bars.categories[:3]))[0] == [names[0]]
    assert category_lines(drawings(RESULTS)[0]) == []


def test_drawings_points_are_sorted_by_x() -> None:
    backwards = replace(RESULTS, rows=RESULTS.rows[::-1])
    line, _ = drawings(backwards)
    assert [[point.x for point in series.points] for series in line.series] == [[2.0], [1.0, 2.0]]


def test_drawings_where_selects_rows() -> None:
    chart = ChartSpec("One", "throughput", "threads", where={"backend": "DALI", "threads": 2})
    (drawing,) = drawings(replace(RESULTS, charts=(chart,)))
    assert [point.x for series in drawing.series for point in series.points] == [2.0]


def test_drawings_booleans_are_categories() -> None:
    rows = tuple(ResultRow({"amp": each}, {"time": Quantity((1.0,), "")}) for each in (True, False))
    (drawing,) = drawings(replace(RESULTS, rows=rows, charts=(ChartSpec("AMP", "time", "amp"),)))
    assert drawing.categories == ("True", "False")
    assert drawing.y == "time"


def test_drawings_series_have_one_colour_in_all_charts() -> None:
    rows = tuple(
        ResultRow({"threads": threads, "backend": backend}, {"images/s": Quantity((1.0,), "images/s")})
        for threads, backend in ((1, "DALI"), (1, "paddle.io"), (2, "paddle.io"))
    )
    charts = tuple(
        ChartSpec("", "images/s", "threads", ("backend",), {"threads": threads}) for threads in (1, 2)
    )
    first, second = drawings(replace(RESULTS, rows=rows, charts=charts))
    assert [each.colour for each in first.series] == [*COLOURS[:2]]
    assert [(each.name, each.colour) for each in second.series] == [("paddle.io", COLOURS[1])]
    assert first.y == "images/s", "a metric named like its unit shows the unit once"


def test_drawings_distant_values_use_a_log_scale() -> None:
    for least, log in ((1000.0, False), (100.0, True), (0.0, False)):
        rows = tuple(
            ResultRow({"chain": str(each)}, {"rate": Quantity((each,), "")}) for each in (20000.0, least)
        )
        (drawing,) = drawings(replace(RESULTS, rows=rows, charts=(ChartSpec("", "rate", "chain"),)))
        assert drawing.log == log


def test_to_png_draws_the_first_series() -> None:
    blue = np.array([0x21, 0x66, 0xAC])
    for drawing in drawings(RESULTS):
        with Image.open(io.BytesIO(to_png(drawing))) as picture:
            assert picture.format == "PNG"
            pixels = np.asarray(picture.convert("RGB"))
        assert (pixels == blue).all(axis=-1).sum() > 50


def test_picture_name_has_number_and_title() -> None:
    line, bars = drawings(RESULTS)
    assert picture_name(1, line) == "01-speed-by-threads.png"
    assert picture_name(2, bars) == "02-stages-each-alone.png"
