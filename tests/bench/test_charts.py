from __future__ import annotations

from dataclasses import replace

from made_results import RESULTS

from ppcls.bench.charts import drawings
from ppcls.bench.results import Chart, Metric, Row


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
