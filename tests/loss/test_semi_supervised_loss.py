"""The loss of unlabelled images, against NumPy."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.loss.functional.pseudo_labels import pseudo_label_loss
from ppcls.loss.semi_supervised import SSL


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
