from __future__ import annotations

import math

import numpy as np

from ppcls.report.confusion import (
    ClassRecall,
    ConfusedPair,
    class_recalls,
    confused_pairs,
    describe_mistake,
    nonzero_cells,
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


def test_describe_mistake_names_both_classes() -> None:
    wrong = Mistake(position=7, label=0, predicted=1, loss=4.123, confidence=0.98)
    assert describe_mistake(wrong, NAMES) == "cat, predicted as dog (98%), loss 4.12"
    nameless = Mistake(7, 0, 5, math.inf, 1.0)
    assert describe_mistake(nameless, ("cat",)) == "cat, predicted as 5 (100%), loss inf"
