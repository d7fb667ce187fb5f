"""The interval of an accuracy covers the truth, and the advice fits what the evaluation shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.report.summary.certainty import advise, bootstrap_interval, measure_certainty


@given(st.integers(1, 500).flatmap(lambda images: st.tuples(st.integers(0, images), st.just(images))))
def test_interval_contains_the_accuracy_and_is_never_empty(counts: tuple[int, int]) -> None:
    correct, images = counts
    low, high = bootstrap_interval(correct, images)
    assert 0 <= low <= correct / images <= high <= 1
    assert high - low > 0.002


@pytest.mark.parametrize("truth", [0.5, 0.9])
def test_interval_covers_the_truth_in_about_95_percent(truth: float) -> None:
    draws = np.random.default_rng(1).binomial(200, truth, 400)
    covered = [low <= truth <= high for low, high in (bootstrap_interval(int(each), 200) for each in draws)]
    assert 0.91 <= np.mean(covered) <= 0.98


def test_baseline_is_the_largest_class() -> None:
    certainty = measure_certainty(np.array([[2, 1], [3, 14]]), ["cat", "dog"])
    assert certainty is not None
    assert (certainty.accuracy, certainty.baseline, certainty.majority) == (0.8, 0.85, "dog")
    assert "always predicts dog has 0.850" in certainty.describe()
    assert measure_certainty(np.zeros((2, 2), np.int64), ["cat", "dog"]) is None


@pytest.mark.parametrize(
    ("confusion", "trained", "expected"),
    [
        ([[2, 1], [3, 14]], 1.0, "not certainly better"),
        ([[20, 0], [0, 20]], 1.0, "add validation pictures"),
        ([[30, 10], [4, 36]], 1.0, "add validation pictures"),
        ([[700, 300], [310, 690]], 0.72, "only 0.720"),
        ([[900, 100], [20, 980]], 1.0, "add training pictures of cat that look like dog; 100 of its 1,000"),
        ([[900, 100], [20, 980]], 0.95, "wrong labels of cat and dog"),
        ([[900, 100], [20, 980]], None, "add training pictures of cat"),
    ],
)
def test_advice(confusion: list[list[int]], trained: float | None, expected: str) -> None:
    assert expected in advise(np.array(confusion), ["cat", "dog"], trained)


def test_advice_recommends_pretrained_weights_only_to_runs_without_them() -> None:
    matrix = np.array([[2, 1], [3, 14]])
    assert "pretrained weights" in advise(matrix, ["cat", "dog"], from_scratch=True)
    assert "pretrained weights" not in advise(matrix, ["cat", "dog"], from_scratch=False)


@pytest.mark.parametrize(
    ("confusion", "trained"), [([[2, 1], [3, 14]], 1.0), ([[900, 100], [20, 980]], 0.95)]
)
def test_advice_names_the_folder_to_audit(confusion: list[list[int]], trained: float) -> None:
    matrix, names = np.array(confusion), ["cat", "dog"]
    assert "`ppcls dataset audit 'my pictures'`" in advise(matrix, names, trained, "my pictures")
    assert "audit" not in advise(matrix, names, trained)
