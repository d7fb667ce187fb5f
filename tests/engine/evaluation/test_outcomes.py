from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_net import MemoryLoader, Net, evaluate

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.precision import FP32
from ppcls.engine.evaluation import outcomes
from ppcls.engine.evaluation.outcomes import OutcomeCollector
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import TopkAcc
from ppcls.report.record import WORST, Outcomes

CLASSES = 4


def collect(logits: np.ndarray, labels: np.ndarray, batch_size: int, padding: int = 0) -> Outcomes:
    collector = OutcomeCollector(logits.shape[1])
    for begin in range(0, len(labels), batch_size):
        rows = np.arange(begin, min(begin + batch_size, len(labels)))
        padded = np.concatenate([rows, np.repeat(rows[:1], padding)])
        batch = Batch(
            paddle.zeros([len(padded), 1]),
            paddle.to_tensor(labels[padded]),
            len(rows),
            1.0,
            True,
            padded + 100,
        )
        collector.add(paddle.to_tensor(logits[rows]), batch)
    return collector.outcomes(world=1)


@given(seed=st.integers(0, 99), count=st.integers(1, 60), batch_size=st.integers(1, 20))
def test_outcomes_are_those_of_a_plain_loop(seed: int, count: int, batch_size: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (count, CLASSES)).astype(np.float32)
    labels = rng.integers(0, CLASSES, count)
    found = collect(logits, labels, batch_size, padding=3)
    confusion, wrong = np.zeros((CLASSES, CLASSES), int), []
    shares = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True)
    for place, (share, label) in enumerate(zip(shares, labels, strict=True)):
        confusion[label, share.argmax()] += 1
        if share.argmax() != label:
            wrong.append((-np.log(share[label]), place + 100, label, share.argmax(), share.max()))
    np.testing.assert_array_equal(found.confusion, confusion)
    worst = [(each.loss, each.position, each.label, each.predicted, each.confidence) for each in found.worst]
    expected = sorted(wrong, reverse=True)[:WORST]
    assert [each[1:4] for each in worst] == [each[1:4] for each in expected]
    np.testing.assert_allclose(worst, expected, rtol=1e-4)
    assert found.confidences.sum() == count
    assert found.confidences[1].sum() == confusion.trace()


def test_blocks_of_batches_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(1).normal(size=(23, CLASSES)).astype(np.float32)
    labels = np.arange(23) % CLASSES
    whole = collect(logits, labels, 23)
    monkeypatch.setattr(outcomes, "_BLOCK", 3)
    parts = collect(logits, labels, 2)
    np.testing.assert_array_equal(parts.confusion, whole.confusion)
    assert [each.position for each in parts.worst] == [each.position for each in whole.worst]


def test_confidences_lie_in_their_bins() -> None:
    logits = np.log(np.array([[0.955, 0.045], [0.955, 0.045], [0.3, 0.7]], np.float32))
    found = collect(logits, np.array([0, 1, 1]), 3).confidences
    right, wrong = found[1].nonzero()[0].tolist(), found[0].nonzero()[0].tolist()
    assert (right, wrong) == ([69, 95], [95]) or (right, wrong) == ([70, 95], [95])


def test_non_finite_logits_are_the_worst_mistakes() -> None:
    logits = np.array([[1, 0], [np.nan, np.nan], [9, 0]], np.float32)
    found = collect(logits, np.array([1, 1, 1]), 3)
    assert found.confusion is not None
    assert found.confusion.sum() <= 3
    assert found.confidences.sum() == 2
    positions = [each.position for each in found.worst]
    assert positions[-2:] == [102, 100]


def test_too_many_classes_have_no_matrix() -> None:
    logits = np.zeros((2, outcomes.MAX_CONFUSION_CLASSES + 1), np.float32)
    logits[:, 5] = 1
    found = collect(logits, np.array([5, 7]), 2)
    assert found.confusion is None
    assert [(each.label, each.predicted) for each in found.worst] == [(7, 5)]


def test_outcomes_of_no_samples_are_empty() -> None:
    found = OutcomeCollector(3).outcomes(1)
    assert found.worst == ()
    assert found.confusion is not None
    assert found.confusion.shape == (3, 3)
    assert not found.confusion.any()


def test_evaluation_collects_outcomes_on_request() -> None:
    loader, metrics = MemoryLoader(size=13, shuffle=False), build_metrics((TopkAcc(topk=(1,)),))
    asked = (Net(), loader, build_criterion((CELoss(),)), metrics, FP32())
    assert evaluate(*asked).outcomes is None
    result = evaluate(*asked, classes=CLASSES)
    assert result.outcomes is not None
    assert result.outcomes.confusion is not None
    assert result.outcomes.confusion.sum() == 13
    assert result.outcomes.confusion.trace() == round(result.metrics["top1"] * 13)
    assert result.outcomes.worst == (), "a loader that does not name its samples has none to show"


@pytest.mark.gpu
def test_outcomes_on_gpu_equal_those_on_cpu() -> None:
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(0, 3, (50, CLASSES)).astype(np.float32), rng.integers(0, CLASSES, 50)
    on_gpu = collect(logits, labels, 8)
    paddle.set_device("cpu")
    on_cpu = collect(logits, labels, 8)
    np.testing.assert_array_equal(on_gpu.confusion, on_cpu.confusion)
    assert [each.position for each in on_gpu.worst] == [each.position for each in on_cpu.worst]
    assert [each.loss for each in on_gpu.worst] == pytest.approx(
        [each.loss for each in on_cpu.worst], rel=1e-4
    )
