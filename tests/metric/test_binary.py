from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.config.sections.objective import TprAtFpr
from ppcls.metric.build import Rows, build_metrics
from ppcls.metric.single_label import true_at_false_positives


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.sampled_from([0, 8]), st.sampled_from([0, 0.1, 0.5]))
def test_tpr_at_fpr_equals_best_threshold(seed, rows, digits, max_fpr):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((rows, 2)).round(digits).astype("float32")  # few values have ties
    labels = rng.integers(0, 2, rows).astype("float64")
    found = true_at_false_positives(scores, labels, max_fpr)
    if len(set(labels)) < 2:
        assert math.isnan(found)
        return
    score = scores[:, 1] - scores[:, 0]
    best = 0.0
    for threshold in [-np.inf, *score]:
        told = score > threshold
        if told[labels == 0].mean() <= max_fpr:
            best = max(best, told[labels == 1].mean())
    assert found == pytest.approx(best)


def test_tpr_at_fpr_is_built_for_two_classes():
    metrics = build_metrics((TprAtFpr(max_fpr=0.25),))
    scores = np.array([[0, 3], [0, 1], [0, 2], [0, -1], [0, -2], [0, -3]], "float32")
    labels = np.array([[1.0], [1.0], [0.0], [0.0], [0.0], [0.0]])
    assert metrics.values(np.zeros(0), 6, {"logits": Rows(scores, labels)}) == {"TprAtFpr": 1.0}
    assert true_at_false_positives(scores, labels[:, 0], 0.2) == 0.5
