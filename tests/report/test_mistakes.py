"""The table of mistakes."""

from __future__ import annotations

import csv
import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppcls.report.confusion import mistakes_csv
from ppcls.report.record import WORST, LabelMistake, LabelOutcomes, Mistake, Outcomes

COUNTS = np.zeros(2, np.int64)


def read(text: str) -> list[dict[str, str]]:
    assert text.startswith("\ufeff")
    return list(csv.DictReader(io.StringIO(text[1:])))


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
def test_all_mistakes_are_listed_with_names(name: str) -> None:
    mistakes = tuple(Mistake(at, 0, 1, 9.0 - at / 100, 0.5) for at in range(WORST + 9))
    outcomes = Outcomes(None, np.zeros((2, 100), np.int64), mistakes)
    assert len(outcomes.worst) == WORST
    rows = read(mistakes_csv(outcomes, ["cat"], lambda at: f"{name}{at}.jpg"))
    assert [(row["label"], row["prediction"], row["score"]) for row in rows] == [
        ("cat", "1", "0.500000")
    ] * len(mistakes)
    assert not any(row["path"].startswith(("=", "+", "-", "@")) for row in rows), "formulas in a spreadsheet"
    if name.isprintable() and name[0] not in "=+-@":
        assert [row["path"] for row in rows] == [f"{name}{at}.jpg" for at in range(len(mistakes))]


def test_mistakes_of_several_labels() -> None:
    mistake = LabelMistake(3, ((1, 0.98), (0, 0.03)), 5, 4.125)
    text = mistakes_csv(LabelOutcomes(COUNTS, COUNTS, COUNTS, (mistake,)), ["cat", "dog"], str)
    assert read(text) == [
        {"path": "3", "missed": "cat", "wrong": "dog", "wrong_labels": "5", "loss": "4.125"}
    ]
