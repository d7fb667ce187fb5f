"""Results of a benchmark: statistics, and files that are read back or rejected."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.bench.results.schema import (
    Quantity,
    ResultRow,
    Results,
    kinds_of_rows,
    label_names,
    read_results,
    to_json,
    varied_labels,
    write_results,
)
from ppcls.errors import UserError

RESULTS = Results(
    benchmark="loader",
    command=("tools/benchmark.py", "loader", "-c", "a.yaml"),
    written="2026-01-02T03:04:05+00:00",
    machine={"Processor": "an <old> one"},
    versions={"ppcls": "1"},
    config="Global:\n  seed: 1\n",
    rows=(
        ResultRow(
            {"backend": "DALI", "threads": 2}, {"latency": Quantity((100.0, 300.0, 200.0), "images/s")}
        ),
        ResultRow({"backend": "paddle.io", "workers": 0, "share": 0.5, "on": True}, {}, "out of memory"),
    ),
    findings=("Use 2 threads.",),
)


def test_quantity_has_median_range_and_spread() -> None:
    metric = Quantity((100.0, 300.0, 200.0), "images/s")
    assert (metric.median, metric.low, metric.high, metric.spread) == (200.0, 100.0, 300.0, 1.0)
    assert Quantity((5.0,), "s").spread == 0.0
    assert Quantity((0.0, 0.0), "s").spread == 0.0
    assert Quantity((-1.0, 1.0), "s").spread == math.inf


@pytest.mark.parametrize("values", [(), (1.0, math.nan), (math.inf,)])
def test_quantity_rejects_missing_and_non_finite_values(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="finite"):
        Quantity(values, "s")


def test_results_are_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    write_results(folder, RESULTS)
    assert read_results(folder) == read_results(folder / "results.json") == RESULTS
    assert sorted(each.name for each in folder.iterdir()) == ["results.csv", "results.json"]


values = st.floats(allow_nan=False, allow_infinity=False)
label = st.text(max_size=5) | st.integers(-9, 9) | values | st.booleans()
labels = st.dictionaries(st.text(max_size=5), label)
metrics = st.builds(Quantity, st.lists(values, min_size=1, max_size=3).map(tuple), st.text(max_size=3))
rows = st.builds(
    ResultRow, labels, st.dictionaries(st.text(max_size=5), metrics, max_size=2), st.text(max_size=5)
)


@given(st.lists(rows, max_size=3))
def test_results_with_any_rows_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, generated: list[ResultRow]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(to_json(replace(RESULTS, rows=tuple(generated))))
    found = read_results(path).rows
    assert found == tuple(generated)
    for one, other in zip(found, generated, strict=True):
        assert {name: type(value) for name, value in one.labels.items()} == {
            name: type(value) for name, value in other.labels.items()
        }


def test_csv_has_one_line_per_value(tmp_path: Path) -> None:
    write_results(tmp_path, RESULTS)
    with (tmp_path / "results.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["backend", "threads", "workers", "share", "on", "metric", "unit", "round", "value"]
    assert [line[-2:] for line in lines] == [["1", "100.0"], ["2", "300.0"], ["3", "200.0"]]
    assert lines[0][:6] == ["DALI", "2", "", "", "", "latency"]


def test_labels_are_named_and_grouped_in_order_of_appearance() -> None:
    assert label_names(RESULTS.rows) == ["backend", "threads", "workers", "share", "on"]
    first, second = (ResultRow({"backend": "DALI", "threads": count}, {}) for count in (1, 2))
    other = ResultRow({"stage": "disk"}, {})
    assert kinds_of_rows([first, other, second]) == [[first, second], [other]]
    assert varied_labels([first, second]) == ["threads"]


def test_read_results_of_an_earlier_version_renames_metrics_and_drops_labels(tmp_path: Path) -> None:
    dropped = {"varied": "workers", "chain": "config", "cudnn search": "auto", "accumulate": 1}
    labels = {**dropped, "backend": "DALI CPU", "workers": 2}
    rates = {"values": [5.0], "unit": "images/s", "better": "more"}
    chart = {"title": "Speed", "metric": "throughput", "x": "workers", "series": ["backend"], "where": {}}
    tree = json.loads(to_json(RESULTS))
    tree["results"] |= {"rows": [{"labels": labels, "metrics": {"throughput": rates}, "note": ""}]}
    tree["results"] |= {"charts": [chart]}
    (tmp_path / "results.json").write_text(json.dumps(tree))
    (row,) = read_results(tmp_path).rows
    assert row.labels == {"backend": "DALI CPU", "workers": 2}
    assert row.metrics == {"images/s": Quantity((5.0,), "images/s")}


def read_error(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_results(path)
    start, end = f"{path}: damaged, or not the results of a benchmark: ", "; expected the results.json that "
    assert str(raised.value).startswith(start)
    return str(raised.value).removeprefix(start).partition(end)[0]


def test_read_results_rejects_other_files(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(UserError, match=r"results\.json: No such file or directory; expected the results"):
        read_results(tmp_path)
    assert "should be an object" in read_error(path, "[]")
    assert read_error(path, "{}") == "results: Field required"
    whole = to_json(RESULTS)
    for name, value in (("format", "COCO"), ("version", 2)):
        error = read_error(path, json.dumps({**json.loads(whole), name: value}))
        assert error.startswith(f"{name}: Input should be ")
    for text in (whole[: len(whole) // 2], ""):
        assert read_error(path, text).startswith("JSON: Invalid JSON: ")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda results: results.pop("rows"), "results.rows: Field required"),
        (lambda results: results.update(more=1), "results.more: "),
        (
            lambda results: results["rows"][0]["metrics"]["latency"].update(values=[]),
            "results.rows.0.metrics.latency: Value error, expected one or more finite values",
        ),
        (
            lambda results: results["rows"][0]["metrics"]["latency"].update(values=["fast"]),
            "results.rows.0.metrics.latency.values.0: Input should be a valid number",
        ),
    ],
)
def test_read_results_names_the_damaged_field(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    tree = json.loads(to_json(RESULTS))
    damage(tree["results"])
    assert read_error(tmp_path / "a.json", json.dumps(tree)).startswith(message)
