"""The loss of unlabelled images, against NumPy."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.loss.functional.pseudo_labels import pseudo_label_loss
from ppcls.loss.semi_supervised import SSL
from ppcls.metric.build import build_metrics, with_unlabelled
from ppcls.metric.single_label import TopkAcc


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_confident_predictions_are_the_labels_of_the_strong_view(temperature: float) -> None:
    rng = np.random.default_rng(3)
    weak, strong = rng.standard_normal((2, 9, 5)).astype("float32")
    probability = softmax(weak / temperature)
    confident = probability.max(axis=1) >= 0.6
    assert 0 < confident.sum() < 9
    cost = -np.log(softmax(strong)[np.arange(9), probability.argmax(axis=1)])
    tensors = [paddle.to_tensor(logits, stop_gradient=False) for logits in (weak, strong)]
    loss = pseudo_label_loss(*tensors, temperature, 0.6)
    assert float(loss) == pytest.approx((cost * confident).sum() / 9, rel=1e-5)
    loss.backward()
    assert tensors[0].grad is None
    assert (np.abs(tensors[1].grad.numpy()).sum(axis=1) > 0).tolist() == confident.tolist()


def test_loss_of_unlabelled_rows_is_added_to_that_of_labelled_ones() -> None:
    paddle.seed(1)
    logits, label = paddle.randn([3 + 2 * 4, 5]), paddle.to_tensor([0, 4, 2])
    plain = build_criterion((CELoss(),))
    criterion = SSL(threshold=0.0, weight=0.5).build(plain)
    unlabelled = pseudo_label_loss(logits[3:7], logits[7:], 1.0, 0.0)
    assert float(criterion(logits, label)) == pytest.approx(
        float(plain(logits[:3], label)) + 0.5 * float(unlabelled), rel=1e-6
    )
    assert float(criterion(logits[:3], label)) == float(plain(logits[:3], label))


def test_metric_is_the_loss_of_unlabelled_rows_and_the_share_of_confident_ones() -> None:
    """It does not depend on the batches, and other metrics still use only the labelled rows."""
    paddle.seed(1)
    section = SSL(threshold=0.4, weight=0.5)
    metrics = with_unlabelled(build_metrics((TopkAcc(topk=1),)), section.metric())
    label = paddle.to_tensor([0, 4, 2])
    batches = [paddle.randn([3 + 2 * 4, 5]), paddle.randn([3 + 2 * 2, 5]), paddle.randn([3, 5])]
    weak = paddle.concat([batches[0][3:7], batches[1][3:5]])
    strong = paddle.concat([batches[0][7:], batches[1][5:]])
    counts = sum(metrics.counts(batch, label).numpy().astype("float64") for batch in batches)
    values = metrics.values(counts, 9)
    expected = float(pseudo_label_loss(weak, strong, 1.0, 0.4))
    assert values["unlabelled_loss"] == pytest.approx(expected, rel=1e-6)
    assert values["confident"] == pytest.approx((softmax(weak.numpy()).max(axis=1) >= 0.4).mean())
    right = sum(int((batch[:3].argmax(axis=1) == label).sum()) for batch in batches)
    assert values["top1"] == pytest.approx(right / 9)
    alone = with_unlabelled(None, section.metric())
    without = alone.values(alone.counts(batches[2], label).numpy().astype("float64"), 3)
    assert np.isnan(list(without.values())).all()
