from __future__ import annotations

from dataclasses import replace

from made_results import RESULTS

from ppcls.bench.results.charts import COLOURS, category_lines, drawings
from ppcls.bench.results.results import Chart, Metric, Row


def test_rows_become_lines_by_their_labels() -> None:
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


def test_names_become_categories_in_their_order() -> None:
    _, bars = drawings(RESULTS)
    assert bars.categories == ("disk", "decode")
    (series,) = bars.series
    assert (series.name, [point.label for point in series.points]) == ("", ["disk", "decode"])


def test_long_names_of_categories_do_not_run_into_each_other() -> None:
    names = [f"ppcls, paddle.io, {count} workers" for count in range(5)]
    rows = tuple(Row({"contender": name}, {"speed": Metric((1.0,), "")}) for name in names)
    (bars,) = drawings(replace(RESULTS, rows=rows, charts=(Chart("All", "speed", "contender"),)))
    assert category_lines(bars)[0] == ["ppcls,", "paddle.io, 0", "workers"]
    assert category_lines(replace(bars, categories=bars.categories[:3]))[0] == [names[0]]
    assert category_lines(drawings(RESULTS)[0]) == []


def test_lines_go_from_left_to_right() -> None:
    backwards = replace(RESULTS, rows=RESULTS.rows[::-1])
    line, _ = drawings(backwards)
    assert [[point.x for point in series.points] for series in line.series] == [[2.0], [1.0, 2.0]]


def test_only_rows_that_are_wanted() -> None:
    chart = Chart("One", "throughput", "threads", where={"backend": "DALI", "threads": 2})
    (drawing,) = drawings(replace(RESULTS, charts=(chart,)))
    assert [point.label for series in drawing.series for point in series.points] == ["2"]


def test_truth_values_are_names() -> None:
    rows = tuple(Row({"amp": each}, {"time": Metric((1.0,), "")}) for each in (True, False))
    (drawing,) = drawings(replace(RESULTS, rows=rows, charts=(Chart("AMP", "time", "amp"),)))
    assert drawing.categories == ("True", "False")
    assert drawing.y == "time"


def test_a_name_has_one_colour_in_all_charts() -> None:
    rows = tuple(
        Row({"threads": threads, "backend": backend}, {"images/s": Metric((1.0,), "images/s")})
        for threads, backend in ((1, "DALI"), (1, "paddle.io"), (2, "paddle.io"))
    )
    charts = tuple(Chart("", "images/s", "threads", ("backend",), {"threads": threads}) for threads in (1, 2))
    first, second = drawings(replace(RESULTS, rows=rows, charts=charts))
    assert [each.colour for each in first.series] == [*COLOURS[:2]]
    assert [(each.name, each.colour) for each in second.series] == [("paddle.io", COLOURS[1])]
    assert first.y == "images/s", "what is called by its unit is not called so twice"


def test_what_is_far_apart_has_a_log_scale() -> None:
    for least, log in ((1000.0, False), (100.0, True), (0.0, False)):
        rows = tuple(Row({"chain": str(each)}, {"rate": Metric((each,), "")}) for each in (20000.0, least))
        (drawing,) = drawings(replace(RESULTS, rows=rows, charts=(Chart("", "rate", "chain"),)))
        assert drawing.log == log
