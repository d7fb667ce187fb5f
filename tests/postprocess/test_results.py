from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import expit, logit, softmax

from ppcls.postprocess.methods import MultiLabelThreshOutput, ThreshOutput, Topk
from ppcls.postprocess.results import Embedding, rank


@given(st.lists(st.floats(-1, 1, width=32), min_size=1))
def test_embedding_as_tree_keeps_all_bits(numbers: list[float]) -> None:
    vector = np.array(numbers, np.float32)
    text = json.dumps(Embedding(vector).as_tree())
    np.testing.assert_array_equal(np.array(json.loads(text)["embedding"], np.float32), vector)


def test_embedding_str_shows_its_first_values() -> None:
    assert str(Embedding(np.array([0.6, -0.8], np.float32))) == "2 values: 0.6000 -0.8000"
    assert str(Embedding(np.full(9, 1 / 3, np.float32))) == "9 values: 0.3333 0.3333 0.3333 0.3333 …"


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.7]), min_size=1, max_size=30), st.data())
def test_rank_keeps_the_order_of_a_stable_sort(scores: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    array = np.array(scores, np.float32)
    np.testing.assert_array_equal(rank(array, count), np.argsort(-array, kind="stable")[:count])


@given(
    threshold=st.floats(0, 1),
    temperature=st.floats(0.001, 1000),
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=20),
)
def test_calibrated_thresholds_decide_as_before(
    threshold: float, temperature: float, logits: list[float]
) -> None:
    """Except for rounding: the test skips logits at the threshold, and scores that round to 0 or 1."""
    array = np.array(logits)
    if 0.0 < threshold < 1.0:
        array = array[np.abs(array - logit(threshold)) > 1e-4]
    array = array[np.abs(array / temperature) < 30]
    method = MultiLabelThreshOutput(threshold=threshold)
    before = method.decide(expit(array))
    np.testing.assert_array_equal(method.calibrated(temperature).decide(expit(array / temperature)), before)
    pair = np.stack([np.zeros_like(array), array], axis=1)
    two = ThreshOutput(threshold=threshold)
    chosen = two.decide(softmax(pair, axis=1))
    np.testing.assert_array_equal(chosen, before)
    calibrated = two.calibrated(temperature).decide(softmax(pair / temperature, axis=1))
    np.testing.assert_array_equal(calibrated, chosen)


@example(threshold=0.25, temperature=0.0078125, logits=[-1.0])
@given(
    threshold=st.floats(0.01, 0.99),
    temperature=st.floats(0.001, 20),
    logits=st.lists(st.floats(-12, 12), min_size=1, max_size=20),
)
def test_calibrated_float32_scores_decide_as_before(
    threshold: float, temperature: float, logits: list[float]
) -> None:
    """A temperature that is not below the lowest one changes no decision, although scores round to 1 or 0."""
    array = np.array(logits, np.float32)
    array = array[np.abs(array - logit(threshold)) > 0.02]
    pair = np.stack([np.zeros_like(array), array], axis=1)
    for method in (MultiLabelThreshOutput(threshold=(threshold, 0.3)), ThreshOutput(threshold=threshold)):
        used = max(temperature, method.lowest_temperature)
        several = isinstance(method, MultiLabelThreshOutput)
        scores, scaled = (
            expit(pair[:, ::-1] / divisor) if several else softmax(pair / divisor, axis=1)
            for divisor in (np.float32(1), np.float32(used))
        )
        assert scaled.dtype == np.float32
        decided = method.decide(scores), method.calibrated(used).decide(scaled)
        first = (slice(None), 0) if several else slice(None)
        np.testing.assert_array_equal(decided[1][first], decided[0][first])


def test_each_threshold_is_calibrated() -> None:
    calibrated = MultiLabelThreshOutput(threshold=(0.8, 0.5, 0.2, 0.0, 1.0)).calibrated(2.0)
    assert calibrated.threshold == pytest.approx((2 / 3, 0.5, 1 / 3, 0.0, 1.0))
    assert Topk().calibrated(2.0) == Topk()
