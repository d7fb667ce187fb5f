from __future__ import annotations

import math

import numpy as np

from ppcls.report.confusion import Pair, cells, confused_pairs, describe_mistake
from ppcls.report.record import Mistake

CONFUSION = np.array([[8, 2, 0], [5, 0, 0], [0, 2, 1]])


def test_only_what_occurred_is_shown_and_the_most_frequent_of_too_many() -> None:
    assert cells(CONFUSION) == [[0, 0, 8], [0, 1, 2], [1, 0, 5], [2, 1, 2], [2, 2, 1]]
    assert cells(CONFUSION, most=3) == [[0, 0, 8], [0, 1, 2], [1, 0, 5]]
    assert cells(np.zeros((2, 2), np.int64)) == []


def test_pairs_are_of_different_classes_the_most_confused_first() -> None:
    names = ("cat", "dog")
    assert confused_pairs(CONFUSION, names) == [
        Pair("dog", "cat", 5, 1.0),
        Pair("cat", "dog", 2, 0.2),
        Pair("2", "dog", 2, 2 / 3),
    ]
    assert len(confused_pairs(CONFUSION, names, most=1)) == 1
    assert confused_pairs(np.diag([3, 4]), names) == []


def test_a_mistake_in_words() -> None:
    wrong = Mistake(position=7, label=0, predicted=1, loss=4.123, confidence=0.98)
    assert describe_mistake(wrong, ("cat", "dog")) == "cat, taken for dog (98%), loss 4.12"
    assert describe_mistake(Mistake(7, 0, 5, math.inf, 1.0), ("cat",)) == "cat, taken for 5 (100%), loss inf"
