"""Losses of logits and labels, compared with formulas in float64."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from specs import section_problems

from ppcls.loss.build import build_criterion
from ppcls.loss.classification import BCELoss, CELoss
from ppcls.loss.multi_label import MultiLabelAsymmetricLoss, MultiLabelLoss

quick = settings(deadline=None, max_examples=40)


def numpy_loss(logits, target):
    """Mean over the batch of ``-sum(target * log softmax)`` in float64."""
    z = logits.astype("float64")
    z = z - z.max(axis=1, keepdims=True)
    return -(target * (z - np.log(np.exp(z).sum(axis=1, keepdims=True)))).sum(axis=1).mean()


@st.composite
def class_batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, classes = draw(st.integers(1, 6)), draw(st.integers(2, 9))
    logits = (rng.standard_normal((rows, classes)) * draw(st.sampled_from([1, 30]))).astype("float32")
    return logits, rng.integers(0, classes, rows), rng.dirichlet(np.ones(classes), rows).astype("float32")


@quick
@given(class_batches(), st.sampled_from([None, 0.0, 0.1, 0.9]), st.floats(-2, 2))
def test_cross_entropy_equals_formula(batch, epsilon, weight):
    logits, label, soft = batch
    criterion = build_criterion((CELoss(epsilon=epsilon, weight=weight),))
    classes = logits.shape[1]
    for given_label, target in ((label, np.eye(classes)[label]), (soft, soft)):
        smooth = (1 - (epsilon or 0)) * target + (epsilon or 0) / classes
        loss = criterion(paddle.to_tensor(logits), paddle.to_tensor(given_label))
        assert loss.dtype == paddle.float32
        assert loss.shape == []
        assert float(loss) == pytest.approx(weight * numpy_loss(logits, smooth), rel=1e-4, abs=1e-4)


@quick
@given(class_batches(), st.sampled_from([None, 0.1]))
def test_cross_entropy_gradient_is_softmax_minus_target(batch, epsilon):
    logits, label, _ = batch
    rows, classes = logits.shape
    tensor = paddle.to_tensor(logits, stop_gradient=False)
    build_criterion((CELoss(epsilon=epsilon),))(tensor, paddle.to_tensor(label)).backward()
    softmax = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    target = (1 - (epsilon or 0)) * np.eye(classes)[label] + (epsilon or 0) / classes
    np.testing.assert_allclose(tensor.grad.numpy(), (softmax - target) / rows, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_computes_in_float32(dtype, soft):
    rng = np.random.default_rng(0)
    logits = paddle.to_tensor(rng.standard_normal((4, 1000)).astype("float32") * 8).astype(dtype)
    label = paddle.to_tensor(rng.dirichlet(np.ones(1000), 4).astype("float32") if soft else [1, 2, 3, 999])
    criterion = build_criterion((CELoss(epsilon=0.1),))
    want = float(criterion(logits.astype("float32"), label))
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        loss = criterion(logits, label)
    assert loss.dtype == paddle.float32
    assert float(loss) == want


def test_cross_entropy_of_very_low_logit_is_exact():
    logits = paddle.to_tensor([[0.0, 200.0]], stop_gradient=False)
    loss = build_criterion((CELoss(),))(logits, paddle.to_tensor([0]))
    loss.backward()
    assert float(loss) == 200.0
    assert logits.grad.tolist() == [[-1.0, 1.0]]
    assert float(build_criterion((CELoss(),))(logits, paddle.to_tensor([1]))) == 0.0


def test_criterion_sums_weighted_losses():
    logits, label = paddle.to_tensor([[1.0, 2.0, 0.0]]), paddle.to_tensor([0])
    first, second = CELoss(weight=2.0), CELoss(weight=0.5, epsilon=0.1)
    total = build_criterion((first, second))(logits, label)
    parts = [build_criterion((each,))(logits, label) for each in (first, second)]
    assert float(total) == pytest.approx(sum(float(each) for each in parts))


def test_criterion_without_a_loss_is_rejected():
    with pytest.raises(ValueError, match="at least one loss"):
        build_criterion(())


@st.composite
def label_batches(draw):
    """Logits [B, C], labels [B, C] of 0 and 1, and shares of positives [C]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, classes = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    logits = (rng.standard_normal((rows, classes)) * draw(st.sampled_from([1, 8]))).astype("float32")
    return logits, rng.integers(0, 2, (rows, classes)).astype("float32"), rng.random(classes)


def sigmoid(z):
    return 1 / (1 + np.exp(-z.astype("float64")))


@quick
@given(label_batches(), st.sampled_from([None, 0.1, 0.9]), st.booleans(), st.booleans(), st.floats(-2, 2))
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
@given(label_batches())
def test_binary_cross_entropy_gradient_is_sigmoid_minus_label(batch):
    logits, label, _ = batch
    tensor = paddle.to_tensor(logits, stop_gradient=False)
    build_criterion((MultiLabelLoss(size_sum=True),))(tensor, paddle.to_tensor(label)).backward()
    np.testing.assert_allclose(tensor.grad.numpy(), (sigmoid(logits) - label) / len(label), atol=1e-6)


@quick
@given(
    label_batches(),
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
    away = np.abs(sigmoid(z) - (clip or 0)) > 1e-3  # from the start of the clipping, which has two slopes
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
@given(label_batches(), st.sampled_from([None, 0.1, 0.6]), st.sampled_from([0.0, 0.2, 0.5]), st.floats(0, 1))
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


def test_celoss_checks_its_numbers():
    assert CELoss() == CELoss(weight=1.0, epsilon=None)
    assert CELoss.model_validate({"epsilon": 0.1, "weight": 2}).weight == 2.0
    assert section_problems(CELoss, {"epsilon": 1.0, "weight": "heavy"}) == {
        "epsilon": "expected a number >= 0 and < 1, got 1.0",
        "weight": "expected a number, got 'heavy'",
    }
