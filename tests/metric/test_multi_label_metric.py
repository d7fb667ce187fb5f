"""Metrics of several labels, against scikit-learn and plain loops."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, hamming_loss

from ppcls.config.multi_label import AccuracyScore, HammingDistance, MultiLabelMAP
from ppcls.metric.build import build_metrics
from ppcls.metric.multi_label import mean_average_precision


@st.composite
def samples(draw):
    """Logits and labels, [N, C]; scores of few values have ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    logits = rng.standard_normal(shape).round(draw(st.sampled_from([0, 8]))).astype("float32")
    return logits, (rng.random(shape) < draw(st.sampled_from([0.1, 0.5]))).astype("float32")


@settings(deadline=None, max_examples=40)
@given(samples(), st.integers(1, 30))
def test_counts_of_any_batches_give_scikit_learns_numbers(sample, size):
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
def test_mean_average_precision_is_scikit_learns(sample):
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
    """The best precision at each recall, threshold by threshold."""
    points, label = [], label.astype("float64")
    for threshold in sorted(set(score.tolist())):
        told = score >= threshold
        points.append(((label * told).sum() / label.sum(), (label * told).sum() / told.sum()))
    return np.mean([max(p for r, p in points if r >= k / 10 - 1e-12) for k in range(11)])


@settings(deadline=None, max_examples=60)
@given(samples())
def test_eleven_points_are_those_of_a_plain_loop(sample):
    scores, label = sample
    known = [k for k in range(label.shape[1]) if label[:, k].any()]
    found = mean_average_precision(scores, label.astype("float64"), "11point")
    if known:
        assert found == pytest.approx(np.mean([eleven_points(scores[:, k], label[:, k]) for k in known]))
    else:
        assert math.isnan(found)


def test_scores_that_are_no_numbers_give_no_number():
    scores = np.array([[0.1], [np.nan]], "float32")
    assert math.isnan(mean_average_precision(scores, np.array([[1.0], [0.0]]), "integral"))


def test_what_is_known_of_the_first_metric():
    assert build_metrics((HammingDistance(), AccuracyScore())).lower_is_better
    both = build_metrics((MultiLabelMAP(), AccuracyScore()))
    assert not both.lower_is_better
    assert both.gathered == ("logits",)
    assert both.names == ("MultiLabelMAP", "AccuracyScore")
    with pytest.raises(ValueError, match="asked for twice: AccuracyScore"):
        build_metrics((AccuracyScore(), AccuracyScore()))


def test_no_images_have_no_values():
    values = build_metrics((AccuracyScore(), HammingDistance())).values(np.zeros(4), 0)
    assert all(math.isnan(each) for each in values.values())
