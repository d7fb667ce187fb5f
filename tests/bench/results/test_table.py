from __future__ import annotations

from dataclasses import replace

import pytest
from made_results import RESULTS

from ppcls.bench.results.results import Metric, Row
from ppcls.bench.results.table import LEGEND, cell, headings, number, render


def test_a_table_for_each_kind_of_rows() -> None:
    lines = [line.split() for line in render(RESULTS).splitlines() if line.strip()]
    assert ["backend", "threads", "images/s"] in lines
    assert ["DALI", "2", "1,000", "±10%"] in lines
    assert ["paddle.io", "$x", "2", "400"] in lines
    assert ["DALI", "64", "out", "of", "<memory>", "[b]"] in lines
    assert ["stage", "images/s"] in lines
    assert ["decode", "1,234"] in lines
    assert render(RESULTS).endswith(f"{LEGEND}\nUse 2 threads & no <more>.\n")


def test_nothing_is_cut_off_where_there_is_no_terminal() -> None:
    long = "a sentence that goes on " * 20
    assert long.strip() in render(replace(RESULTS, findings=(long.strip(),)))


def test_without_rounds_there_is_no_spread() -> None:
    single = replace(RESULTS, rows=RESULTS.rows[2:3])
    assert LEGEND not in render(single)
    assert render(replace(RESULTS, rows=(), findings=())) == "\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234567.0, "1,235,000"), (999.96, "1,000"), (12.345, "12.35"), (0.00001234, "1.23e-05")],
)
def test_four_digits_count(value: float, text: str) -> None:
    assert number(value) == text


def test_cells() -> None:
    assert cell(None) == ""
    assert cell(Metric((90.0, 100.0, 110.0), "s")) == "100 ±10%"
    assert cell(Metric((100.0,), "s")) == "100"


def test_what_all_rows_share_is_said_once() -> None:
    rows = [
        Row({"backend": "DALI", "cache": each}, {"time": Metric((1.0,), "")}) for each in ("warm", "cold")
    ]
    assert (headings(rows).caption, headings(rows).labels) == ("backend: DALI", ["cache"])
    assert (headings(rows[:1]).caption, headings(rows[:1]).labels) == ("", ["backend", "cache"])
    assert render(replace(RESULTS, rows=tuple(rows), findings=())).splitlines()[0] == "backend: DALI"


@pytest.mark.parametrize("width", [20, 80])
def test_nothing_is_cut_off_on_a_narrow_terminal(width: int) -> None:
    names = [f"a rather long name {number}" for number in range(9)]
    row = Row(dict.fromkeys(names, "x" * 30), {each: Metric((12345.678,), "images/s") for each in names})
    text = render(replace(RESULTS, rows=(row, replace(row, note="a note of some words")), findings=()), width)
    assert "…" not in text
    assert text.count("12,350") == 18
