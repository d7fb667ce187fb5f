"""Losses of several labels, against the formulas in float64."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ppcls.config.objectives.multi_label import MultiLabelAsymmetricLoss, MultiLabelLoss
from ppcls.config.sections.objective import BCELoss
from ppcls.loss.build import build_criterion

quick = settings(deadline=None, max_examples=40)


@st.composite
def batches(draw):
    """Logits [B, C], labels [B, C] of 0 and 1, and the positives' shares [C]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, classes = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    logits = (rng.standard_normal((rows, classes)) * draw(st.sampled_from([1, 8]))).astype("float32")
    return logits, rng.integers(0, 2, (rows, classes)).astype("float32"), rng.random(classes)


def sigmoid(z):
    return 1 / (1 + np.exp(-z.astype("float64")))


@quick
@given(batches(), st.sampled_from([None, 0.1, 0.9]), st.booleans(), st.booleans(), st.floats(-2, 2))
def test_binary_cross_entropy_equals_formula(batch, epsilon, size_sum, weighted, weight):
    logits, label, share = batch
    spec = MultiLabelLoss(epsilon=epsilon, size_sum=size_sum, weight_ratio=weighted, weight=weight)
    loss = build_criterion((spec,), share)(paddle.to_tensor(logits), paddle.to_tensor(label))
    target = (1 - (epsilon or 0)) * label + (epsilon or 0) / label.shape[1]
    p = sigmoid(logits)
    cost = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    if weighted:
        cost = cost * np.exp(np.where(label == 1, 1 - share, share))
    want = weight * (cost.sum(axis=1) if size_sum else cost).mean()
    assert loss.dtype == paddle.float32
    assert loss.shape == []
    assert float(loss) == pytest.approx(want, rel=1e-4, abs=1e-5)


@quick
@given(batches())
def test_binary_cross_entropy_gradient_is_sigmoid_minus_label(batch):
    logits, label, _ = batch
    tensor = paddle.to_tensor(logits, stop_gradient=False)
    build_criterion((MultiLabelLoss(size_sum=True),))(tensor, paddle.to_tensor(label)).backward()
    np.testing.assert_allclose(tensor.grad.numpy(), (sigmoid(logits) - label) / len(label), atol=1e-6)


@quick
@given(
    batches(),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.sampled_from([0.0, 4.0]),
    st.sampled_from([None, 0.05]),
    st.sampled_from(["sum", "mean"]),
    st.booleans(),
)
def test_asymmetric_loss_and_gradient_equal_formula(batch, gamma_pos, gamma_neg, clip, reduction, constant):
    logits, label, _ = batch
    spec = MultiLabelAsymmetricLoss(
        gamma_pos=gamma_pos,
        gamma_neg=gamma_neg,
        clip=clip,
        reduction=reduction,
        disable_focal_loss_grad=constant,
    )

    def cost(z, focus_of):
        right, focused = (
            label * sigmoid(each) + (1 - label) * np.minimum(1 - sigmoid(each) + (clip or 0), 1)
            for each in (z, focus_of)
        )
        return -((1 - focused) ** np.where(label == 1, gamma_pos, gamma_neg)) * np.log(
            np.maximum(right, 1e-8)
        )

    scale = 1 / len(label) / (label.shape[1] if reduction == "mean" else 1)
    tensor = paddle.to_tensor(logits, stop_gradient=False)
    loss = build_criterion((spec,))(tensor, paddle.to_tensor(label))
    loss.backward()
    assert float(loss) == pytest.approx(cost(logits, logits).sum() * scale, rel=1e-4, abs=1e-6)
    step, z = 1e-5, logits.astype("float64")
    high, low = (cost(z + d, z if constant else z + d) for d in (step, -step))
    away = np.abs(sigmoid(z) - (clip or 0)) > 1e-3  # from where the clipping begins, which has two slopes
    slopes = (high - low) / (2 * step) * scale
    np.testing.assert_allclose(tensor.grad.numpy()[away], slopes[away], rtol=1e-2, atol=2e-5)


@pytest.mark.parametrize("spec", [MultiLabelLoss(epsilon=0.1), MultiLabelAsymmetricLoss()])
def test_class_index_equals_one_hot_label(spec):
    logits, label = paddle.randn([4, 5]), np.array([0, 4, 2, 2])
    one, hot = (
        float(build_criterion((spec,))(logits, paddle.to_tensor(each)))
        for each in (label, np.eye(5, dtype="float32")[label])
    )
    assert one == hot


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("spec", [MultiLabelLoss(size_sum=True), MultiLabelAsymmetricLoss()])
def test_multi_label_losses_compute_in_float32(dtype, spec):
    logits = (paddle.randn([4, 300]) * 8).astype(dtype)
    label = (paddle.rand([4, 300]) > 0.7).astype("float32")
    criterion = build_criterion((spec,))
    want = float(criterion(logits.astype("float32"), label))
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        loss = criterion(logits, label)
    assert loss.dtype == paddle.float32
    assert float(loss) == want


@quick
@given(batches(), st.sampled_from([None, 0.1, 0.6]), st.sampled_from([0.0, 0.2, 0.5]), st.floats(0, 1))
def test_bce_loss_target_is_one_above_threshold(batch, epsilon, threshold, share):
    logits, _, _ = batch
    rows, classes = logits.shape
    one, other = np.random.default_rng(rows).integers(0, classes, (2, rows))
    label = (share * np.eye(classes)[one] + (1 - share) * np.eye(classes)[other]).astype("float32")
    spec = BCELoss(epsilon=epsilon, target_threshold=threshold)
    loss = build_criterion((spec,))(paddle.to_tensor(logits), paddle.to_tensor(label))
    smooth = np.float32(1 - (epsilon or 0)) * label + np.float32((epsilon or 0) / classes)
    p = sigmoid(logits)
    want = -np.where(smooth > np.float32(threshold), np.log(p), np.log1p(-p)).mean()
    assume(np.abs(smooth - threshold).min() > 1e-6)
    assert float(loss) == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_bce_loss_of_class_index_equals_binary_cross_entropy():
    logits, label = paddle.randn([4, 5]), paddle.to_tensor([0, 4, 2, 2])
    plain = build_criterion((MultiLabelLoss(),))(logits, label)
    for epsilon in (None, 0.1):
        assert float(build_criterion((BCELoss(epsilon=epsilon),))(logits, label)) == pytest.approx(
            float(plain)
        )
