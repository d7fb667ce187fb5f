from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from ppcls.report.confusion import (
    ClassRecall,
    ConfusedPair,
    class_recalls,
    confused_pairs,
    confusion_csv,
    describe_mistake,
    nonzero_cells,
    read_confusion,
)
from ppcls.report.record import Mistake

CONFUSION = np.array([[8, 2, 0], [5, 0, 0], [0, 2, 1]])
NAMES = ("cat", "dog")


def test_nonzero_cells_keep_the_highest_counts() -> None:
    assert nonzero_cells(CONFUSION) == [[0, 0, 8], [0, 1, 2], [1, 0, 5], [2, 1, 2], [2, 2, 1]]
    assert nonzero_cells(CONFUSION, max_cells=3) == [[0, 0, 8], [0, 1, 2], [1, 0, 5]]
    assert nonzero_cells(np.zeros((2, 2), np.int64)) == []


def test_confused_pairs_are_sorted_by_count() -> None:
    assert confused_pairs(CONFUSION, NAMES) == [
        ConfusedPair("dog", "cat", 5, 1.0),
        ConfusedPair("cat", "dog", 2, 0.2),
        ConfusedPair("2", "dog", 2, 2 / 3),
    ]
    assert len(confused_pairs(CONFUSION, NAMES, max_pairs=1)) == 1
    assert confused_pairs(np.diag([3, 4]), NAMES) == []


def test_class_recalls_start_with_the_lowest_and_omit_empty_classes() -> None:
    assert class_recalls(CONFUSION, NAMES) == [
        ClassRecall("dog", 0, 5),
        ClassRecall("2", 1, 3),
        ClassRecall("cat", 8, 10),
    ]
    assert class_recalls(np.diag([0, 4]), NAMES) == [ClassRecall("dog", 4, 4)]


@pytest.mark.parametrize("name", ["-dash", "=1+1", "+x", "@x", "'x", "a,b;c", 'q"q', "Käfer 🐞"])
def test_confusion_table_has_no_formulas_and_is_read_again(tmp_path: Path, name: str) -> None:
    file = tmp_path / "confusion.csv"
    file.write_text(confusion_csv(np.diag([3, 4]), [name, "dog"]), encoding="utf-8-sig")
    header, row, _ = csv.reader(file.read_text("utf-8-sig").splitlines())
    assert not header[1].startswith(("=", "+", "-", "@"))
    assert row[0] == header[1]
    matrix, names = read_confusion(file)
    assert names == [name, "dog"]
    np.testing.assert_array_equal(matrix, np.diag([3, 4]))


def test_describe_mistake_names_both_classes() -> None:
    wrong = Mistake(position=7, label=0, predicted=1, loss=4.123, confidence=0.98)
    assert describe_mistake(wrong, NAMES) == "cat, predicted as dog (98%), loss 4.12"
    nameless = Mistake(7, 0, 5, math.inf, 1.0)
    assert describe_mistake(nameless, ("cat",)) == "cat, predicted as 5 (100%), loss inf"
