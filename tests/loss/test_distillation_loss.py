"""Distillation losses, compared with formulas in float64 and with equivalent definitions."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import log_expit, log_softmax, rel_entr, softmax
from scipy.stats import pearsonr

from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.loss.distillation import (
    DistillationCELoss,
    DistillationDISTLoss,
    DistillationDKDLoss,
    DistillationDMLLoss,
    DistillationGTCELoss,
    DistillationKLDivLoss,
    DistillationMultiLabelLoss,
    DistillationSKDLoss,
    DistillationWSLLoss,
)
from ppcls.loss.multi_label import MultiLabelLoss

quick = settings(deadline=None, max_examples=30)
PAIR = [("Student", "Teacher")]


@st.composite
def logits(draw):
    """Logits of two models, [B, C], and labels [B]."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, classes = draw(st.integers(1, 5)), draw(st.integers(2, 8))
    scale = draw(st.sampled_from([1, 8]))
    own, other = (rng.standard_normal((2, rows, classes)) * scale).astype("float32")
    return own, other, rng.integers(0, classes, rows)


def learn(spec, own, other, label, **options):
    """Returns the loss, and the gradients of the student and the teacher."""
    outputs = {"Student": paddle.to_tensor(own, stop_gradient=False)}
    outputs["Teacher"] = paddle.to_tensor(other, stop_gradient=False)
    loss = build_criterion((spec,), **options)(outputs, paddle.to_tensor(label))
    assert loss.dtype == paddle.float32
    assert loss.shape == []
    loss.backward()
    return float(loss), *(outputs[name].grad for name in ("Student", "Teacher"))


def close(want):
    return pytest.approx(want, rel=1e-4, abs=1e-5)


@quick
@given(logits(), st.sampled_from([None, 0.2]))
def test_soft_cross_entropy_equals_formula(batch, epsilon):
    own, other, label = batch
    loss, grad, taught = learn(DistillationCELoss(model_name_pairs=PAIR, epsilon=epsilon), *batch)
    smooth = epsilon or 0
    target = (1 - smooth) * softmax(other.astype("float64"), axis=1) + smooth / own.shape[1]
    assert loss == close(-(target * log_softmax(own.astype("float64"), axis=1)).sum(axis=1).mean())
    np.testing.assert_allclose(grad.numpy(), (softmax(own, axis=1) - target) / len(label), atol=1e-5)
    assert taught is None


@quick
@given(logits(), st.sampled_from([1.0, 4.0]))
def test_softened_divergence_equals_formula(batch, temperature):
    _, _, label = batch
    spec = DistillationKLDivLoss(model_name_pairs=PAIR, temperature=temperature)
    loss, grad, taught = learn(spec, *batch)
    p, q = (softmax(each.astype("float64") / temperature, axis=1) for each in batch[:2])
    assert loss == close(temperature**2 * rel_entr(q, p).sum(axis=1).mean())
    np.testing.assert_allclose(grad.numpy(), temperature * (p - q) / len(label), atol=1e-5)
    assert taught is None


@quick
@given(logits(), st.sampled_from(["softmax", "sigmoid"]), st.booleans())
def test_mutual_divergence_has_gradients_for_both_models(batch, act, times):
    own, other, label = batch
    spec = DistillationDMLLoss(model_name_pairs=PAIR, act=act, sum_across_class_dim=times)
    loss, grad, taught = learn(spec, *batch)
    log = log_expit if act == "sigmoid" else lambda z: log_softmax(z, axis=1)
    p, q = (log(each.astype("float64")) for each in batch[:2])
    cost = (np.exp(p) * (p - q) + np.exp(q) * (q - p)) / 2
    assert loss == close(cost.sum(axis=1).mean() * (own.shape[1] if times else 1))
    swapped = learn(spec, other, own, label)
    np.testing.assert_allclose(swapped[1].numpy(), taught.numpy(), atol=1e-5)
    np.testing.assert_allclose(swapped[2].numpy(), grad.numpy(), atol=1e-5)


def test_mutual_divergence_weights_rare_labels():
    own, other = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    label = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], "float32")
    share = np.array([0.1, 0.5, 0.2, 0.9], "float32")
    spec = DistillationDMLLoss(model_name_pairs=PAIR, act="sigmoid", weight_ratio=True)
    loss, _, _ = learn(spec, own, other, label, positives=share)
    p, q = log_expit(own.astype("float64")), log_expit(other.astype("float64"))
    cost = (np.exp(p) - np.exp(q)) * (p - q) / 2 * np.exp(np.where(label == 1, 1 - share, share))
    assert loss == close(cost.sum(axis=1).mean())


@quick
@given(logits(), st.sampled_from([1.0, 4.0]), st.sampled_from([1.0, 0.5]), st.sampled_from([1.0, 8.0, 0.0]))
def test_decoupled_divergence_equals_formula(batch, temperature, alpha, beta):
    own, other, label = batch
    spec = DistillationDKDLoss(model_name_pairs=PAIR, temperature=temperature, alpha=alpha, beta=beta)
    loss, _, taught = learn(spec, *batch)
    rows = []
    z_of, t_of = (each.astype("float64") / temperature for each in (own, other))
    for z, t, k in zip(z_of, t_of, label, strict=True):
        p, q = softmax(z), softmax(t)
        two = rel_entr([q[k], 1 - q[k]], [p[k], 1 - p[k]]).sum()
        rest = rel_entr(softmax(np.delete(t, k)), softmax(np.delete(z, k))).sum()
        rows.append(alpha * two + beta * rest)
    assert loss == pytest.approx(temperature**2 * np.mean(rows), rel=2e-3, abs=1e-4)
    assert taught is None


@quick
@given(logits(), st.sampled_from([1.0, 4.0]))
def test_decoupled_divergence_equals_full_divergence_for_matching_beta(batch, temperature):
    """Zhao et al., equation 6, for one image: KL = TCKD + (1 - p_t) * NCKD."""
    own, other, label = (each[:1] for each in batch)
    beta = 1 - softmax(other[0].astype("float64") / temperature)[label[0]]
    decoupled = DistillationDKDLoss(model_name_pairs=PAIR, temperature=temperature, beta=beta)
    whole = DistillationKLDivLoss(model_name_pairs=PAIR, temperature=temperature)
    (one, grad, _), (two, want, _) = (learn(each, own, other, label) for each in (decoupled, whole))
    assert one == pytest.approx(two, rel=1e-3, abs=1e-4)
    np.testing.assert_allclose(grad.numpy(), want.numpy(), atol=1e-4)


@quick
@given(logits(), st.sampled_from([1.0, 2.0]))
def test_weighted_soft_labels_equal_formula(batch, temperature):
    own, other, label = batch
    spec = DistillationWSLLoss(model_name_pairs=PAIR, temperature=temperature)
    loss, grad, taught = learn(spec, *batch)
    z, t = own.astype("float64"), other.astype("float64")
    rows = np.arange(len(label))
    hard, hard_of_other = (-log_softmax(each, axis=1)[rows, label] for each in (z, t))
    weight = 1 - np.exp(-hard / (hard_of_other + 1e-7))
    p, q = softmax(z / temperature, axis=1), softmax(t / temperature, axis=1)
    soft = -(q * log_softmax(z / temperature, axis=1)).sum(axis=1)
    assert loss == pytest.approx(temperature**2 * (weight * soft).mean(), rel=1e-3, abs=1e-4)
    want = temperature * weight[:, None] * (p - q) / len(label)
    np.testing.assert_allclose(grad.numpy(), want, atol=1e-4)
    assert taught is None


@quick
@given(logits(), st.sampled_from([1.0, 4.0]), st.sampled_from([1.0, 2.0]), st.sampled_from([0.0, 0.9]))
def test_spherical_loss_ignores_scale_of_logits(batch, temperature, length, alpha):
    own, other, label = batch
    assume(min(each.std(axis=1).min() for each in batch[:2]) > 0.05)
    spec = DistillationSKDLoss(model_name_pairs=PAIR, temperature=temperature, multiplier=length, alpha=alpha)
    loss, _, taught = learn(spec, *batch)
    z, t = (
        (each - each.mean(axis=1, keepdims=True)) / each.std(axis=1, keepdims=True) * length
        for each in (own.astype("float64"), other.astype("float64"))
    )
    q = softmax(t / temperature, axis=1)
    soft = -(q * log_softmax(z / temperature, axis=1)).sum(axis=1).mean() * temperature**2
    hard = -log_softmax(z, axis=1)[np.arange(len(label)), label].mean()
    assert loss == pytest.approx(alpha * soft + (1 - alpha) * hard, rel=1e-3, abs=1e-4)
    assert taught is None
    again = learn(spec, own * 3 + 5, other, label)[0]
    assert again == pytest.approx(loss, rel=1e-3, abs=1e-3), "length and mean do not count"


@quick
@given(logits(), st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 0.5]))
def test_correlation_distance_equals_formula(batch, beta, gamma):
    own, other, _ = batch
    rows, classes = own.shape
    assume(rows > 2 and classes > 2 and np.abs(own).max() < 6 and np.abs(other).max() < 6)
    spec = DistillationDISTLoss(model_name_pairs=PAIR, beta=beta, gamma=gamma)
    loss, grad, taught = learn(spec, *batch)
    p, q = softmax(own.astype("float64"), axis=1), softmax(other.astype("float64"), axis=1)
    of_images = np.mean([1 - pearsonr(p[row], q[row])[0] for row in range(rows)])
    of_classes = np.mean([1 - pearsonr(p[:, each], q[:, each])[0] for each in range(classes)])
    assert loss == pytest.approx(beta * of_images + gamma * of_classes, rel=1e-3, abs=1e-3)
    assert np.isfinite(grad.numpy()).all()
    assert taught is None


def test_correlation_distance_of_equal_rows_has_finite_gradient():
    for own in (np.zeros((1, 4), "float32"), np.zeros((3, 4), "float32")):
        loss, grad, _ = learn(
            DistillationDISTLoss(model_name_pairs=PAIR), own, own + 1, np.zeros(len(own), int)
        )
        assert loss == (2.0 if len(own) > 1 else 1.0)  # one image has no relation to others
        assert np.isfinite(grad.numpy()).all()


def test_use_target_as_gt_uses_teachers_best_class():
    own, other = np.random.default_rng(1).standard_normal((2, 6, 5)).astype("float32")
    label, best = np.zeros(6, "int64"), other.argmax(axis=1)
    for spec in (DistillationDKDLoss, DistillationWSLLoss, DistillationSKDLoss):
        by_teacher = spec(model_name_pairs=PAIR, use_target_as_gt=True)
        plain = spec(model_name_pairs=PAIR)
        assert learn(by_teacher, own, other, label)[0] == learn(plain, own, other, best)[0]
        mixed = np.eye(5, dtype="float32")[best] * 0.7 + np.eye(5, dtype="float32")[label] * 0.3
        assert learn(plain, own, other, mixed)[0] == learn(plain, own, other, best)[0]


def test_per_model_losses_sum_over_models():
    own, other = (paddle.randn([4, 5]) for _ in range(2))
    outputs, label = {"Student": own, "Teacher": other}, paddle.to_tensor([0, 1, 4, 4])
    several = (paddle.rand([4, 5]) > 0.5).astype("float32")
    for spec, plain, marks in (
        (DistillationGTCELoss, CELoss, label),
        (DistillationMultiLabelLoss, MultiLabelLoss, several),
    ):
        both = build_criterion((spec(model_names=["Student", "Teacher"], epsilon=0.1, weight=2.0),))
        one = build_criterion((plain(epsilon=0.1, weight=2.0),))
        assert float(both(outputs, marks)) == pytest.approx(float(one(own, marks) + one(other, marks)))
        alone = build_criterion((spec(model_names=["Student"], epsilon=0.1, weight=2.0),))
        assert float(alone(own, marks)) == float(one(own, marks)), "evaluation is of the student alone"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "spec",
    [
        *(DistillationCELoss, DistillationKLDivLoss, DistillationDMLLoss, DistillationDKDLoss),
        *(DistillationWSLLoss, DistillationSKDLoss, DistillationDISTLoss),
    ],
)
def test_distillation_losses_compute_in_float32(dtype, spec):
    own, other = ((paddle.randn([4, 300]) * 8).astype(dtype) for _ in range(2))
    criterion, label = build_criterion((spec(model_name_pairs=PAIR),)), paddle.to_tensor([0, 1, 2, 299])
    want = float(criterion({"Student": own.astype("float32"), "Teacher": other.astype("float32")}, label))
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        loss = criterion({"Student": own, "Teacher": other}, label)
    assert loss.dtype == paddle.float32
    assert float(loss) == want
