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
    ChartSpec,
    Quantity,
    ResultRow,
    Results,
    label_names,
    metric_names,
    read_results,
    spread_warning,
    to_json,
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
            {"backend": "DALI", "threads": 2}, {"throughput": Quantity((100.0, 300.0, 200.0), "images/s")}
        ),
        ResultRow({"backend": "paddle.io", "workers": 0, "share": 0.5, "on": True}, {}, "out of memory"),
    ),
    charts=(ChartSpec("Speed", "throughput", "threads", ("backend",), {"threads": 2}),),
    findings=("Use 2 threads.",),
)


def test_quantity_statistics() -> None:
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
def test_any_rows_are_read_back(tmp_path_factory: pytest.TempPathFactory, generated: list[ResultRow]) -> None:
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
    assert lines[0][:6] == ["DALI", "2", "", "", "", "throughput"]


def test_names_are_in_order_of_appearance() -> None:
    assert label_names(RESULTS.rows) == ["backend", "threads", "workers", "share", "on"]
    assert metric_names(RESULTS.rows) == ["throughput"]


def test_spread_warning_noisy_rounds_are_reported() -> None:
    quiet, noisy, single = (
        Quantity(values, "") for values in ((100.0, 104.0, 98.0), (100.0, 160.0, 80.0), (100.0,))
    )
    assert spread_warning([quiet, quiet, single]) == spread_warning([]) == []
    (sentence,) = spread_warning([quiet, noisy, noisy])
    assert sentence.startswith("Runs of the same candidate differ by ±40% here: other work")


def read_error(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_results(path)
    assert str(raised.value).startswith(f"{path}: ")
    return str(raised.value).removeprefix(f"{path}: ")


def test_read_results_rejects_other_files(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(UserError, match=r"results\.json: no such file; expected the results\.json that"):
        read_results(tmp_path)
    expected = "not a benchmark's results; expected the results.json that ppcls benchmark --out writes"
    for text in ("[]", "{}", "1", '{"format": "COCO"}'):
        assert read_error(path, text) == expected
    whole = to_json(RESULTS)
    assert read_error(path, json.dumps({**json.loads(whole), "version": 2})) == (
        "results of version 2, but this ppcls reads version 1; "
        "read them with the ppcls that wrote them, or measure again"
    )
    assert read_error(path, whole[: len(whole) // 2]).startswith(
        "not a benchmark's results, or damaged: not JSON: "
    )
    assert "not JSON" in read_error(path, "")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda results: results.pop("rows"), "results.rows: Field required"),
        (lambda results: results.update(more=1), "results.more: "),
        (
            lambda results: results["rows"][0]["metrics"]["throughput"].update(values=[]),
            "results.rows.0.metrics.throughput: Value error, expected finite values",
        ),
        (
            lambda results: results["rows"][0]["metrics"]["throughput"].update(values=["fast"]),
            "results.rows.0.metrics.throughput.values.0: Input should be a valid number",
        ),
    ],
)
def test_read_results_names_the_damaged_field(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    tree = json.loads(to_json(RESULTS))
    damage(tree["results"])
    assert read_error(tmp_path / "a.json", json.dumps(tree)).startswith(f"damaged: {message}")
