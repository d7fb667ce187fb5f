"""The results per sample of evaluations with several labels, compared with a plain loop."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.loaders.batch import Batch
from ppcls.engine.evaluation import outcomes
from ppcls.engine.evaluation.label_outcomes import LabelOutcomeCollector
from ppcls.report.record import WORST, LabelOutcomes


def collect(logits: np.ndarray, labels: np.ndarray, batch_size: int, padding: int = 0) -> LabelOutcomes:
    collector = LabelOutcomeCollector(logits.shape[1])
    for begin in range(0, len(labels), batch_size):
        rows = np.arange(begin, min(begin + batch_size, len(labels)))
        padded = np.concatenate([rows, np.repeat(rows[:1], padding)])
        images = paddle.zeros([len(padded), 1])
        batch = Batch(images, paddle.to_tensor(labels[padded]), len(rows), 1.0, True, padded + 100)
        collector.add(paddle.to_tensor(logits[rows]), batch)
    return collector.outcomes(world=1)


@given(
    seed=st.integers(0, 99),
    count=st.integers(1, 60),
    classes=st.integers(1, 7),
    batch_size=st.integers(1, 20),
)
def test_label_outcomes_are_those_of_a_plain_loop(
    seed: int, count: int, classes: int, batch_size: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (count, classes)).astype(np.float32)
    labels = (rng.random((count, classes)) < 0.4).astype(np.float32)
    found = collect(logits, labels, batch_size, padding=3)
    predicted = logits > 0
    true = labels > 0.5
    np.testing.assert_array_equal(found.predicted, predicted.sum(axis=0))
    np.testing.assert_array_equal(found.true, true.sum(axis=0))
    np.testing.assert_array_equal(found.correct, (predicted & true).sum(axis=0))
    z = logits.astype(float)
    costs = np.logaddexp(0, z) - labels * z
    losses = costs.sum(axis=1)
    wrong = (predicted != true).sum(axis=1)
    expected = [int(at) for at in np.argsort(-losses, kind="stable") if wrong[at]][:WORST]
    assert [each.position for each in found.worst] == [at + 100 for at in expected]
    for each, at in zip(found.worst, expected, strict=True):
        assert each.loss == pytest.approx(losses[at], rel=1e-4)
        assert each.wrong == wrong[at]
        order = np.argsort(-costs[at], kind="stable")
        ranked = [int(label) for label in order if predicted[at, label] != true[at, label]]
        assert [label for label, _ in each.labels] == ranked[:4]
        for label, share in each.labels:
            assert share == pytest.approx(1 / (1 + np.exp(-z[at, label])), rel=1e-4)


def test_blocks_of_batches_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(23, 5)).astype(np.float32)
    labels = (rng.random((23, 5)) < 0.5).astype(np.float32)
    whole = collect(logits, labels, 23)
    monkeypatch.setattr(outcomes, "_BLOCK", 3)
    parts = collect(logits, labels, 2)
    assert [each.position for each in parts.worst] == [each.position for each in whole.worst]


def test_evaluation_without_samples_has_no_outcomes() -> None:
    found = LabelOutcomeCollector(3).outcomes(world=1)
    assert found.true.tolist() == [0, 0, 0]
    assert found.worst == ()
