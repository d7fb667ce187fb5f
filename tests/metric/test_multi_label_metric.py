"""Metrics of several labels, compared with scikit-learn and plain loops."""

from __future__ import annotations

import importlib.util
import math
import runpy
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    hamming_loss,
    jaccard_score,
    precision_score,
    recall_score,
)

from ppcls.metric.build import Rows, build_metrics
from ppcls.metric.functional.multi_label import attribute_measures, mean_average_precision
from ppcls.metric.multi_label import (
    AccuracyScore,
    ATTRMetric,
    HammingDistance,
    MultiLabelMAP,
    PerLabelMetrics,
)


@st.composite
def samples(draw):
    """Logits and labels, [N, C]; rounded scores have ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    logits = rng.standard_normal(shape).round(draw(st.sampled_from([0, 8]))).astype("float32")
    return logits, (rng.random(shape) < draw(st.sampled_from([0.1, 0.5]))).astype("float32")


@settings(deadline=None, max_examples=40)
@given(samples(), st.integers(1, 30))
def test_label_metrics_of_any_batches_equal_scikit_learn(sample, size):
    logits, label = sample
    metrics = build_metrics((AccuracyScore(), AccuracyScore(base="sample"), HammingDistance()))
    counts = sum(
        metrics.counts(
            paddle.to_tensor(logits[at : at + size]), paddle.to_tensor(label[at : at + size])
        ).numpy()
        for at in range(0, len(label), size)
    )
    values = metrics.values(counts.astype("float64"), len(label))
    predicted = logits > 0
    assert values == {
        "AccuracyScore": pytest.approx(1 - hamming_loss(label, predicted)),
        "AccuracyScore_sample": pytest.approx(accuracy_score(label, predicted)),
        "HammingDistance": pytest.approx(hamming_loss(label, predicted)),
    }


@settings(deadline=None, max_examples=60)
@given(samples())
def test_mean_average_precision_equals_scikit_learn(sample):
    scores, label = sample
    known = [k for k in range(label.shape[1]) if label[:, k].any()]
    found = mean_average_precision(scores, label.astype("float64"), "integral")
    if not known:
        assert math.isnan(found)
        return
    want = np.mean([average_precision_score(label[:, k], scores[:, k]) for k in known])
    assert found == pytest.approx(want)
    order = np.random.default_rng(0).permutation(len(label))
    assert mean_average_precision(scores[order], label[order].astype("float64"), "integral") == found


def eleven_points(score, label):
    """The best precision at each recall, one threshold at a time."""
    points, label = [], label.astype("float64")
    for threshold in sorted(set(score.tolist())):
        predicted = score >= threshold
        points.append(((label * predicted).sum() / label.sum(), (label * predicted).sum() / predicted.sum()))
    return np.mean([max(p for r, p in points if r >= k / 10 - 1e-12) for k in range(11)])


@settings(deadline=None, max_examples=60)
@given(samples())
def test_eleven_point_precision_equals_plain_loop(sample):
    scores, label = sample
    known = [k for k in range(label.shape[1]) if label[:, k].any()]
    found = mean_average_precision(scores, label.astype("float64"), "11point")
    if known:
        assert found == pytest.approx(np.mean([eleven_points(scores[:, k], label[:, k]) for k in known]))
    else:
        assert math.isnan(found)


@pytest.fixture(scope="module")
def attr_meter():
    """PaddleClas's function, loaded from its file, as its package runs a command line when imported."""
    (package,) = importlib.util.find_spec("paddleclas").submodule_search_locations
    return runpy.run_path(str(Path(package, "ppcls/utils/misc.py")))["AttrMeter"]


@settings(deadline=None, max_examples=60)
@given(samples(), st.sampled_from([0.2, 0.5, 0.9]))
def test_attribute_measures_equal_paddleclas_and_scikit_learn(attr_meter, sample, threshold):
    logits, label = sample
    spec = ATTRMetric(threshold=threshold)
    metrics = build_metrics((spec,))
    found = metrics.values(np.zeros(0), len(label), {"logits": Rows(logits, label.astype("float64"))})
    predicted = 1 / (1 + np.exp(-logits.astype("float64"))) > threshold
    true = label > 0.5
    meter = attr_meter()
    meter.update(
        {
            "gt_pos": true.sum(axis=0).astype("float64"),
            "gt_neg": (~true).sum(axis=0).astype("float64"),
            "true_pos": (predicted & true).sum(axis=0).astype("float64"),
            "true_neg": (~predicted & ~true).sum(axis=0).astype("float64"),
            "false_pos": (predicted & ~true).sum(axis=0).astype("float64"),
            "false_neg": (~predicted & true).sum(axis=0).astype("float64"),
            "gt_pos_ins": true.sum(axis=1).astype("float64"),
            "true_pos_ins": predicted.sum(axis=1).astype("float64"),
            "intersect_pos": (predicted & true).sum(axis=1).astype("float64"),
            "union_pos": (predicted | true).sum(axis=1).astype("float64"),
        }
    )
    ma, _, _, _, f1, accuracy, precision, recall = meter.res()
    assert list(found) == list(spec.names)
    assert list(found.values()) == pytest.approx([ma, accuracy, precision, recall, f1])
    if label.shape[1] > 1:  # scikit-learn treats one column as one class of two
        how = {"average": "samples", "zero_division": 0}
        assert found["instance_accuracy"] == pytest.approx(jaccard_score(true, predicted, **how))
        assert found["instance_precision"] == pytest.approx(precision_score(true, predicted, **how))
        assert found["instance_recall"] == pytest.approx(recall_score(true, predicted, **how))


def test_attribute_measures_of_all_correct_and_all_wrong_labels():
    label = np.array([[1.0, 0.0], [0.0, 1.0]])
    metrics = build_metrics((ATTRMetric(),))
    for sign, expected in ((3.0, 1.0), (-3.0, 0.0)):
        logits = (sign * (2 * label - 1)).astype("float32")
        found = metrics.values(np.zeros(0), 2, {"logits": Rows(logits, label)})
        assert list(found.values()) == [expected] * 5
    logits[0, 0] = np.inf
    assert all(math.isnan(each) for each in attribute_measures(logits, label, 0.5))


def test_non_finite_scores_return_nan():
    scores = np.array([[0.1], [np.nan]], "float32")
    assert math.isnan(mean_average_precision(scores, np.array([[1.0], [0.0]]), "integral"))


def test_first_metric_decides_direction():
    assert build_metrics((HammingDistance(), AccuracyScore())).lower_is_better
    both = build_metrics((MultiLabelMAP(), AccuracyScore()))
    assert not both.lower_is_better
    assert both.gathered == ("logits",)
    assert both.names == ("MultiLabelMAP", "AccuracyScore")
    with pytest.raises(ValueError, match="listed twice: AccuracyScore"):
        build_metrics((AccuracyScore(), AccuracyScore()))


def test_mean_average_precision_of_no_images_is_nan():
    values = build_metrics((AccuracyScore(), HammingDistance())).values(np.zeros(4), 0)
    assert all(math.isnan(each) for each in values.values())


@settings(deadline=None, max_examples=40)
@given(samples(), st.integers(1, 30), st.sampled_from([0.3, 0.5]))
def test_metrics_per_label_of_any_batches_equal_scikit_learn(sample, size, threshold):
    logits, label = sample
    classes = label.shape[1]
    spec = PerLabelMetrics(each=True, threshold=threshold)
    metrics = build_metrics((spec,), classes)
    assert metrics.names == spec.all_names(classes)
    counts = sum(
        metrics.counts(
            paddle.to_tensor(logits[at : at + size]), paddle.to_tensor(label[at : at + size])
        ).numpy()
        for at in range(0, len(label), size)
    )
    values = metrics.values(counts.astype("float64"), len(label))
    predicted = (1 / (1 + np.exp(-logits.astype("float32")))) > threshold
    known = [k for k in range(classes) if label[:, k].any() or predicted[:, k].any()]
    for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        each = [score(label[:, k], predicted[:, k], zero_division=0) for k in range(classes)]
        expected = [each[k] if k in known else math.nan for k in range(classes)]
        found = [values[f"label_{name}_{k}"] for k in range(classes)]
        assert found == pytest.approx(expected, nan_ok=True)
        mean = float(np.mean([each[k] for k in known])) if known else math.nan
        assert values[f"label_{name}"] == pytest.approx(mean, nan_ok=True)


def test_attributes_of_an_image_without_labels_count_as_0_as_documented():
    """One image is rightly predicted empty, the other rightly has its label."""
    logits = np.array([[-5.0, -5.0], [5.0, -5.0]], np.float32)
    labels = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert attribute_measures(logits, labels, 0.5)[1:] == [0.5, 0.5, 0.5, 0.5]
