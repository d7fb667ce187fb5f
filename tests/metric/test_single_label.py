"""Metrics of images that have one class, compared with scikit-learn and plain loops."""

from __future__ import annotations

import math
import warnings

import numpy as np
import paddle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, precision_recall_fscore_support
from specs import section_problems

from ppcls.metric.build import Rows, build_metrics
from ppcls.metric.functional.single_label import confusion, true_at_false_positives
from ppcls.metric.single_label import CalibrationError, ConfusionMatrix, PerClassRecall, TopkAcc, TprAtFpr


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_topk_counts_rows_with_fewer_than_k_higher_logits(data):
    classes, rows = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 6))
    topk = tuple(data.draw(st.lists(st.integers(1, classes), min_size=1, max_size=3, unique=True)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = np.stack([rng.permutation(classes) for _ in range(rows)]).astype("float32")  # no ties
    label = rng.integers(0, classes, rows)
    metrics = build_metrics((TopkAcc(topk=topk),))
    counts = metrics.counts(paddle.to_tensor(logits), paddle.to_tensor(label))
    above = (logits > logits[np.arange(rows), label][:, None]).sum(axis=1)
    assert metrics.names == tuple(f"top{k}" for k in topk)
    assert counts.dtype == paddle.int64
    assert counts.tolist() == [int((above < k).sum()) for k in topk]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_topk_resolves_ties_like_paddle(dtype):
    logits = paddle.to_tensor([[1.0, 1.0, 1.0, 0.0]]).astype(dtype)
    first = paddle.topk(logits.astype("float32"), 1)[1].item()
    metrics = build_metrics((TopkAcc(topk=(1, 3)),))
    for label in range(4):
        counts = metrics.counts(logits, paddle.to_tensor([label]))
        assert counts.tolist() == [int(label == first), int(label < 3)]


def test_metrics_combine_several_counts():
    metrics = build_metrics((TopkAcc(topk=2), TopkAcc(topk=(1,))))
    assert metrics.names == ("top2", "top1")
    logits = paddle.to_tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert metrics.counts(logits, paddle.to_tensor([1, 0])).tolist() == [2, 1]


def test_metrics_without_or_with_repeated_name_are_rejected():
    with pytest.raises(ValueError, match="at least one metric"):
        build_metrics(())
    with pytest.raises(ValueError, match="listed twice: top1"):
        build_metrics((TopkAcc(), TopkAcc(topk=1)))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 6), st.integers(1, 30))
def test_class_metrics_of_any_batches_equal_scikit_learn(seed, rows, classes, size):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes)).astype("float32")
    label = rng.integers(0, classes, rows)
    metrics = build_metrics((PerClassRecall(each=True), ConfusionMatrix(each=True)), classes)
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
    known = sorted({*label.tolist(), *predicted.tolist()})
    precision, _, f1, _ = precision_recall_fscore_support(label, predicted, labels=known, zero_division=0)
    for name, want in (("precision", precision), ("f1", f1)):
        np.testing.assert_allclose([values[f"{name}_{k}"] for k in known], want)
        absent = set(range(classes)).difference(known)
        assert all(math.isnan(values[f"{name}_{k}"]) for k in absent)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(2, 5), st.integers(1, 30), st.integers(1, 15)
)
def test_calibration_error_of_any_batches_equals_formula(seed, rows, classes, size, bins):
    rng = np.random.default_rng(seed)
    logits = (2 * rng.standard_normal((rows, classes))).astype("float32")
    label = rng.integers(0, classes, rows)
    metrics = build_metrics((CalibrationError(bins=bins),), classes)
    counts = sum(
        metrics.counts(paddle.to_tensor(logits[i : i + size]), paddle.to_tensor(label[i : i + size])).numpy()
        for i in range(0, rows, size)
    )
    z = np.exp(logits.astype("float64"))
    confidence = (z / z.sum(axis=1, keepdims=True)).max(axis=1)
    assume(np.abs(confidence * bins - np.round(confidence * bins)).min() > 1e-4 or bins == 1)
    right, place = logits.argmax(axis=1) == label, np.ceil(confidence * bins)
    want = sum(abs((right - confidence)[place == k].sum()) for k in range(1, bins + 1)) / rows
    assert metrics.lower_is_better
    assert metrics.values(counts.astype("float64"), rows)["ece"] == pytest.approx(want, abs=1e-6)
    counts = metrics.counts(paddle.to_tensor([[math.nan, 0.0]]), paddle.to_tensor([0])).numpy()
    assert math.isfinite(metrics.values(counts.astype("float64"), 1)["ece"])


def test_calibration_error_does_not_cancel_errors_of_low_and_high_probabilities():
    logits = paddle.to_tensor([[0.4, 0.3, 0.3], [0.1, 0.8, 0.1]]).log()
    metrics = build_metrics((CalibrationError(bins=2),), 3)
    counts = metrics.counts(logits, paddle.to_tensor([0, 2])).numpy().astype("float64")
    assert metrics.values(counts, 2)["ece"] == pytest.approx((0.6 + 0.8) / 2)


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


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.sampled_from([0, 8]), st.sampled_from([0, 0.1, 0.5]))
def test_tpr_at_fpr_equals_best_threshold(seed, rows, digits, max_fpr):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((rows, 2)).round(digits).astype("float32")  # with few digits there are ties
    labels = rng.integers(0, 2, rows).astype("float64")
    found = true_at_false_positives(scores, labels, max_fpr)
    if len(set(labels)) < 2:
        assert math.isnan(found)
        return
    score = scores[:, 1] - scores[:, 0]
    best = 0.0
    for threshold in [-np.inf, *score]:
        predicted = score > threshold
        if predicted[labels == 0].mean() <= max_fpr:
            best = max(best, predicted[labels == 1].mean())
    assert found == pytest.approx(best)


def test_tpr_at_fpr_is_built_for_two_classes():
    metrics = build_metrics((TprAtFpr(max_fpr=0.25),))
    scores = np.array([[0, 3], [0, 1], [0, 2], [0, -1], [0, -2], [0, -3]], "float32")
    labels = np.array([[1.0], [1.0], [0.0], [0.0], [0.0], [0.0]])
    assert metrics.values(np.zeros(0), 6, {"logits": Rows(scores, labels)}) == {"TprAtFpr": 1.0}
    assert true_at_false_positives(scores, labels[:, 0], 0.2) == 0.5


@pytest.mark.parametrize(("topk", "values"), [(3, (3,)), ([1, 3], (1, 3))])
def test_topk_accepts_one_or_several_integers(topk, values):
    assert TopkAcc().topk == (1, 5)
    assert TopkAcc.model_validate({"topk": topk}).topk == values


@pytest.mark.parametrize("topk", [0, True, [1, 0], [1.5], [], [1, 1]])
def test_topk_other_values_are_reported(topk):
    (place,) = section_problems(TopkAcc, {"topk": topk})
    assert place.startswith("topk")
