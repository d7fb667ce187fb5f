"""Metrics that look at each class, against scikit-learn."""

from __future__ import annotations

import math
import warnings

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, precision_recall_fscore_support

from ppcls.config.sections.objective import ConfusionMatrix, PerClassRecall
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import confusion


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 6), st.integers(1, 30))
def test_class_metrics_of_any_batches_equal_scikit_learn(seed, rows, classes, size):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes)).astype("float32")
    label = rng.integers(0, classes, rows)
    metrics = build_metrics((PerClassRecall(each=True), ConfusionMatrix()), classes)
    counts = sum(
        metrics.counts(paddle.to_tensor(logits[i : i + size]), paddle.to_tensor(label[i : i + size])).numpy()
        for i in range(0, rows, size)
    )
    assert counts.shape == (metrics.width,)
    values = metrics.values(counts.astype("float64"), rows)
    predicted = logits.argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        balanced = balanced_accuracy_score(label, predicted)
        macro = precision_recall_fscore_support(label, predicted, average="macro", zero_division=0)[:3]
        recalls = [
            np.mean(predicted[label == k] == k) if (label == k).any() else math.nan for k in range(classes)
        ]
    assert list(values)[:2] == ["recall_mean", "recall_min"]
    assert values["recall_mean"] == pytest.approx(balanced)
    assert values["recall_min"] == pytest.approx(np.nanmin(recalls))
    found = [values[f"recall_{k}"] for k in range(classes)]
    np.testing.assert_allclose(found, recalls)
    named = [values[name] for name in ("macro_precision", "macro_recall", "macro_f1")]
    np.testing.assert_allclose(named, macro)


def test_confusion_is_label_first_and_uses_largest_share():
    logits = paddle.to_tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 1.0, 3.0]])
    want = confusion_matrix([1, 1, 0], [0, 1, 2], labels=[0, 1, 2])
    assert confusion(logits, paddle.to_tensor([1, 1, 0])).reshape([3, 3]).tolist() == want.tolist()
    shares = paddle.to_tensor([[0.3, 0.7, 0.0], [0.0, 1.0, 0.0], [0.6, 0.4, 0.0]])
    assert confusion(logits, shares).reshape([3, 3]).tolist() == want.tolist()


def test_non_finite_logits_count_as_wrong():
    logits = paddle.to_tensor([[math.nan, math.nan], [1.0, 0.0]])
    metrics = build_metrics((PerClassRecall(), ConfusionMatrix()), 2)
    counts = metrics.counts(logits, paddle.to_tensor([1, 0])).numpy().astype("float64")
    assert counts[:4].tolist()[2:] == [1.0, 1.0], "all images count"
    assert metrics.values(counts, 2)["recall_mean"] <= 1.0
