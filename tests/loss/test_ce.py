import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.config.sections.objective import CELoss, TopkAcc
from ppcls.loss.build import build_criterion

quick = settings(deadline=None, max_examples=40)


def numpy_loss(logits, target):
    """Mean over the batch of ``-sum(target * log softmax)`` in float64."""
    z = logits.astype("float64")
    z = z - z.max(axis=1, keepdims=True)
    return -(target * (z - np.log(np.exp(z).sum(axis=1, keepdims=True)))).sum(axis=1).mean()


@st.composite
def batches(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, classes = draw(st.integers(1, 6)), draw(st.integers(2, 9))
    logits = (rng.standard_normal((rows, classes)) * draw(st.sampled_from([1, 30]))).astype("float32")
    return logits, rng.integers(0, classes, rows), rng.dirichlet(np.ones(classes), rows).astype("float32")


@quick
@given(batches(), st.sampled_from([None, 0.0, 0.1, 0.9]), st.floats(-2, 2))
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
@given(batches(), st.sampled_from([None, 0.1]))
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


def test_criterion_without_valid_loss_is_rejected():
    with pytest.raises(ValueError, match="at least one loss"):
        build_criterion(())
    with pytest.raises(TypeError, match="TopkAcc is not a loss"):
        build_criterion((TopkAcc(),))
