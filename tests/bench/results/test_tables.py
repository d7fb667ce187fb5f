"""Tables of results on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_results import RESULTS

from ppcls.bench.results.schema import Quantity, ResultRow
from ppcls.bench.results.tables import LEGEND, cell, describe_source, number, render_results


def test_render_results_has_a_table_per_kind_of_rows() -> None:
    lines = [line.split() for line in render_results(RESULTS).splitlines() if line.strip()]
    assert ["backend", "threads", "images/s"] in lines
    assert ["DALI", "2", "1,000", "±10%"] in lines
    assert ["paddle.io", "$x", "2", "400"] in lines
    assert ["DALI", "64", "out", "of", "<memory>", "[b]"] in lines
    assert ["stage", "images/s"] in lines
    assert ["decode", "1,234"] in lines
    assert render_results(RESULTS).endswith(f"{LEGEND}\nUse 2 threads & no <more>.\n")


def test_render_results_without_terminal_cuts_nothing_off() -> None:
    long = "a sentence that goes on " * 20
    assert long.strip() in render_results(replace(RESULTS, findings=(long.strip(),)))


def test_render_results_of_single_rounds_has_no_legend() -> None:
    single = replace(RESULTS, rows=RESULTS.rows[2:3])
    assert LEGEND not in render_results(single)
    assert render_results(replace(RESULTS, rows=(), findings=())) == "\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234567.0, "1,235,000"), (999.96, "1,000"), (12.345, "12.35"), (0.00001234, "1.23e-05")],
)
def test_number_has_four_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_cell_shows_median_and_spread() -> None:
    assert cell(None) == ""
    assert cell(Quantity((90.0, 100.0, 110.0), "s")) == "100 ±10%"
    assert cell(Quantity((100.0,), "s")) == "100"


def test_render_results_shared_labels_are_the_title() -> None:
    rows = [
        ResultRow({"backend": "DALI", "cache": each}, {"time": Quantity((1.0,), "")})
        for each in ("warm", "cold")
    ]
    tables = [replace(RESULTS, rows=tuple(some), findings=()) for some in (rows, rows[:1])]
    lines = [render_results(table).splitlines() for table in tables]
    assert lines[0][0] == "backend: DALI"
    assert lines[0][2].split() == ["cache", "time"]
    assert lines[1][1].split() == ["backend", "cache", "time"], "a single row keeps its labels"


@pytest.mark.parametrize("width", [20, 80])
def test_render_results_on_narrow_terminal_cuts_nothing_off(width: int) -> None:
    names = [f"a rather long name {number}" for number in range(9)]
    row = ResultRow(
        dict.fromkeys(names, "x" * 30), {each: Quantity((12345.678,), "images/s") for each in names}
    )
    text = render_results(
        replace(RESULTS, rows=(row, replace(row, note="a note of some words")), findings=()), width
    )
    assert "…" not in text
    assert text.count("12,350") == 18


def test_describe_source_names_date_command_machine_and_versions() -> None:
    assert describe_source(replace(RESULTS, subject="configs/some.yaml")).splitlines() == [
        "loader: configs/some.yaml",
        "an <old> one, batch size: unknown, 1 to 3 rounds, 2026-01-02",
        "date: 2026-01-02T03:04:05+00:00",
        "command: tools/benchmark.py loader -c 'my config.yaml'",
        "Processor: an <old> one",
        "versions: ppcls 1",
        "config: configs/some.yaml; complete in results.json",
    ]
