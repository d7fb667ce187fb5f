"""Losses of layers' outputs, compared with the papers' formulas in float64 and PaddleClas's layers."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn
from scipy.special import softmax

from ppcls.arch.distillation_model import DistillationModel
from ppcls.errors import UserError
from ppcls.loss.base import learned_losses
from ppcls.loss.build import build_criterion
from ppcls.loss.layer_distillation import DistillationDistanceLoss, DistillationRKDLoss
from ppcls.loss.learned import AFDLoss, CenterLoss, DistillationPairLoss
from ppcls.outputs import layer_output_name

quick = settings(deadline=None, max_examples=25)
PAIR = (("Student", "Teacher"),)
NO_LABEL = paddle.zeros([1], "int64")


def huber(difference):
    far = np.abs(difference)
    return np.where(far < 1, far**2 / 2, far - 0.5)


@st.composite
def features(draw):
    """Features of two models, of different shapes, for the images of a batch."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, side = draw(st.integers(2, 5)), draw(st.sampled_from([2, 4]))
    own = rng.standard_normal((rows, draw(st.integers(1, 4)), side, side)) * draw(st.sampled_from([1, 20]))
    other = rng.standard_normal((rows, draw(st.integers(1, 4)), 4, 4)) + draw(st.sampled_from([0, 30]))
    return own.astype("float32"), other.astype("float32")


def learnt(spec, own, other, one="a", two="b"):
    """Returns the loss and the gradients of both models."""
    outputs = {
        layer_output_name("Student", one): paddle.to_tensor(own, stop_gradient=False),
        layer_output_name("Teacher", two): paddle.to_tensor(other, stop_gradient=False),
    }
    loss = build_criterion((spec,))(outputs, NO_LABEL)
    assert loss.dtype == paddle.float32
    assert loss.shape == []
    loss.backward()
    return float(loss), *(each.grad for each in outputs.values())


@pytest.mark.parametrize(
    ("mode", "formula"),
    [("l1", np.abs), ("l2", np.square), ("smooth_l1", huber)],
    ids=["l1", "l2", "smooth_l1"],  # equal in every process of a test run
)
def test_distance_loss_compares_layers_of_both_models(mode, formula):
    own, other = (np.random.default_rng(seed).standard_normal((3, 4, 2, 2)) * 2 for seed in (0, 1))
    spec = DistillationDistanceLoss(model_name_pairs=PAIR, key="a", mode=mode, weight=0.5)
    loss, grad, taught = learnt(spec, own.astype("float32"), other.astype("float32"), "a", "a")
    assert loss == pytest.approx(formula(own - other).mean() / 2, rel=1e-5)
    np.testing.assert_allclose(grad.numpy(), -taught.numpy(), atol=1e-7)
    for act, shape in (
        ("sigmoid", lambda z: 1 / (1 + np.exp(-z))),
        ("softmax", lambda z: softmax(z, axis=-1)),
    ):
        acting = spec.model_copy(update={"act": act, "weight": 1.0})
        found = learnt(acting, own.astype("float32"), other.astype("float32"), "a", "a")[0]
        assert found == pytest.approx(formula(shape(own) - shape(other)).mean(), rel=1e-5)
    logits = {"Student": paddle.to_tensor(own[..., 0, 0]), "Teacher": paddle.to_tensor(other[..., 0, 0])}
    for key in ("logits", "output", None):
        plain = DistillationDistanceLoss(model_name_pairs=PAIR, key=key, mode=mode)
        want = formula(own - other)[..., 0, 0].mean()
        assert float(build_criterion((plain,))(logits, NO_LABEL)) == pytest.approx(want, rel=1e-5)


def relations(points):
    """Distances over their mean, and cosines at each point, of points [B, D], as in Park et al."""
    points, count = points.reshape(len(points), -1).astype("float64"), len(points)
    far = np.linalg.norm(points[:, None] - points[None], axis=2)
    cosines = np.zeros((count,) * 3)
    for i, j, k in itertools.product(range(count), repeat=3):
        if i not in (j, k):
            to_j, to_k = points[j] - points[i], points[k] - points[i]
            cosines[i, j, k] = to_j @ to_k / (np.linalg.norm(to_j) * np.linalg.norm(to_k))
    return far / far.mean(), cosines


def pooled_to(side, maps):
    rows, channels, height, _ = maps.shape
    parts = maps.astype("float64").reshape(rows, channels, side, height // side, side, -1)
    return parts.mean((3, 5))


@quick
@given(features(), st.sampled_from([None, 1, 2]))
def test_relational_loss_equals_paper(batch, side):
    spec = DistillationRKDLoss(
        model_name_pairs=PAIR, student_keepkeys=["a"], teacher_keepkeys=["b"], target_size=side
    )
    loss, grad, taught = learnt(spec, *batch)
    pooled = batch if side is None else [pooled_to(side, each) for each in batch]
    (far, angle), (far_of_other, angle_of_other) = map(relations, pooled)
    want = huber(far - far_of_other).mean() + huber(angle - angle_of_other).mean()
    assert loss == pytest.approx(want, rel=2e-3, abs=2e-4)
    assert np.isfinite(grad.numpy()).all()
    assert taught is None


def test_relational_loss_of_equal_images_is_finite():
    own = np.ones((4, 3, 2, 2), "float32")
    spec = DistillationRKDLoss(student_keepkeys=["a"], teacher_keepkeys=["b"])
    loss, grad, _ = learnt(spec, own, np.random.default_rng(0).standard_normal((4, 5)).astype("float32"))
    assert np.isfinite(loss)
    assert np.isfinite(grad.numpy()).all()


def pair(name, **options):
    keys = {"s_key": "a", "t_key": "b", "student_channels": 3, "teacher_channels": 4}
    return DistillationPairLoss(base_loss_name=name, model_name_pairs=PAIR, **{**keys, **options})


def both(own, other):
    return {layer_output_name("Student", "a"): own, layer_output_name("Teacher", "b"): other}


def test_mgd_loss_equals_formula():
    paddle.seed(0)
    layer = pair("MGDLoss", lambda_mgd=0.0).build_layer({})
    own, other = paddle.randn([5, 3, 4, 4]), paddle.randn([5, 4, 4, 4])
    own.stop_gradient = False
    cost = layer(both(own, other))
    assert cost.shape == [5]
    generated = layer.generation[2](nn.functional.relu(layer.generation[0](layer.align(own))))
    want = 1.756 * ((generated - other) ** 2).mean(axis=[1, 2, 3])
    np.testing.assert_allclose(cost.numpy(), want.numpy(), rtol=1e-5)
    cost.sum().backward()
    assert own.grad is not None
    assert all(each.grad is not None for each in layer.parameters())
    first = layer.generation[0].weight.numpy()
    assert first.std() == pytest.approx(np.sqrt(2 / (9 * 4)), rel=0.2)


def test_mgd_loss_masks_random_channels():
    paddle.seed(0)
    seen = []
    layer = pair("MGDLoss", lambda_mgd=0.25, student_channels=4).build_layer({})
    layer.generation.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    layer(both(paddle.ones([500, 4, 2, 2]), paddle.ones([500, 4, 2, 2])))
    masked = seen[0].numpy()
    assert set(np.unique(masked)) == {0.0, 1.0}
    assert (masked == masked[:, :, :1, :1]).all()
    assert (masked == 0).mean() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 2000) ** 0.5)


def test_pefd_loss_equals_cosine_of_projections():
    paddle.seed(0)
    layer = pair("PEFDLoss", num_projectors=2).build_layer({})
    assert len(layer.projectors) == 2
    own, other = paddle.randn([5, 3, 1, 1]), paddle.randn([5, 4, 1, 1])
    mean = sum(np.maximum(each(own).numpy(), 0) for each in layer.projectors).reshape(5, 4) / 2
    flat = other.numpy().reshape(5, 4)
    cosine = (mean * flat).sum(1) / np.linalg.norm(mean, axis=1) / np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(layer(both(own, other)).numpy(), 1 - cosine, atol=1e-5)


def test_criterion_averages_costs_of_images():
    losses = (pair("PEFDLoss"), pair("MGDLoss", weight=3.0))
    assert list(learned_losses(losses)) == ["loss0", "loss1"]
    outputs = {"loss0": paddle.to_tensor([1.0, 2.0]), "loss1": paddle.to_tensor([0.0, 4.0])}
    assert float(build_criterion(losses)(outputs, NO_LABEL)) == 1.5 + 3 * 2


STUDENT, TEACHER = [[4, 6, 6], [5, 3, 3]], [[3, 6, 6], [7, 3, 3], [7, 3, 3]]


def attending():
    """An AFDLoss and its models."""
    models = [
        {
            name: {
                "name": "AttentionModel",
                "freeze_params_list": [name == "Teacher", False],
                "models": [
                    {"Backbone": {"name": "ResNet18", "pretrained": name == "Teacher"}},
                    {"Transform": {"name": f"LinearTransform{name}", "qk_dim": 8, "keys": keys, **shapes}},
                ],
            }
        }
        for name, keys, shapes in (
            ("Teacher", ["c", "d", "e"], {"t_shapes": TEACHER}),
            ("Student", ["a", "b"], {"s_shapes": STUDENT, "t_shapes": TEACHER}),
        )
    ]
    arch = DistillationModel.model_validate({"name": "DistillationModel", "models": models})
    return AFDLoss(s_shapes=STUDENT, t_shapes=TEACHER, qk_dim=8), arch


def test_afd_loss_attention_equals_paddleclas():
    """PaddleClas's two transforms with our weights, and equations 4 to 6 by loops."""
    root = Path(importlib.util.find_spec("paddleclas").submodule_search_locations[0])
    file = importlib.util.spec_from_file_location("afd", root / "ppcls/arch/distill/afd_attention.py")
    theirs = importlib.util.module_from_spec(file)
    file.loader.exec_module(theirs)  # only this file: the package needs more
    spec, arch = attending()
    paddle.seed(0)
    ours = spec.build_layer(arch.model_facts)
    shapes = {"t_shapes": TEACHER}
    query = theirs.LinearTransformTeacher(qk_dim=8, keys=["c", "d", "e"], **shapes)
    key = theirs.LinearTransformStudent(qk_dim=8, keys=["a", "b"], s_shapes=STUDENT, **shapes)
    state = ours.state_dict()
    for transform in (query, key):
        own = transform.state_dict()
        assert set(own) < set(state)
        transform.set_state_dict({name: state[name] for name in own})
    own, other = (
        {name: paddle.randn([6, *shape]) for name, shape in zip(names, generated, strict=True)}
        for names, generated in (("ab", STUDENT), ("cde", TEACHER))
    )
    for layer in (ours, query, key):
        layer.train()
    asked, answers = query(other), key(own)
    fit = np.einsum("bstq,btq->bts", answers["bilinear_key"].numpy(), asked["query"].numpy())
    fit = (fit + ours.p_t.numpy() @ ours.p_s.numpy().T) / np.sqrt(8)
    share = np.exp(fit) / np.exp(fit).sum(axis=2, keepdims=True)
    want = np.zeros(6)
    for image, t, s in itertools.product(range(6), range(3), range(2)):
        value = answers["value"][0 if t == 0 else 1][image, s].numpy()
        want[image] += share[image, t, s] * ((value - asked["value"][t][image].numpy()) ** 2).mean()
    outputs = {layer_output_name("Student", name): each for name, each in own.items()}
    outputs |= {layer_output_name("Teacher", name): each for name, each in other.items()}
    np.testing.assert_allclose(ours(outputs).numpy(), want, rtol=1e-4)


def test_afd_loss_gets_gradients():
    spec, arch = attending()
    layer = spec.build_layer(arch.model_facts)
    outputs = {}
    for name, keys, shapes in (("Student", "ab", STUDENT), ("Teacher", "cde", TEACHER)):
        for key, shape in zip(keys, shapes, strict=True):
            outputs[layer_output_name(name, key)] = paddle.randn([4, *shape])
            outputs[layer_output_name(name, key)].stop_gradient = False
    layer(outputs).sum().backward()
    grads = {name: each.grad for name, each in outputs.items()}
    assert all((grad is None) == name.startswith("Teacher") for name, grad in grads.items())
    assert all(each.grad is not None for each in layer.parameters() if not each.stop_gradient)


def test_center_loss_equals_its_formula() -> None:
    spec = CenterLoss(num_classes=3, feat_dim=4, feature_from="backbone", weight=0.5)
    model = nn.Layer()
    model.loss0 = spec.build_layer({})
    rng = np.random.default_rng(0)
    x, label = rng.standard_normal((5, 4)).astype("float32"), np.array([0, 2, 2, 1, 0])
    tensor = paddle.to_tensor(x, stop_gradient=False)
    loss = build_criterion((spec,), model=model)({"backbone": tensor}, paddle.to_tensor(label))
    loss.backward()
    centers = model.loss0.centers.numpy().astype("float64")
    difference = x - centers[label]
    np.testing.assert_allclose(float(loss), 0.5 * (difference**2).sum() / 5, rtol=1e-6)
    np.testing.assert_allclose(tensor.grad.numpy(), 0.5 * 2 * difference / 5, atol=1e-6)
    expected = np.zeros_like(centers)
    np.add.at(expected, label, -0.5 * 2 * difference / 5)
    np.testing.assert_allclose(model.loss0.centers.grad.numpy(), expected, atol=1e-6)


def test_center_loss_of_another_length_is_an_error() -> None:
    layer = CenterLoss(num_classes=3, feat_dim=4).build_layer({})
    with pytest.raises(UserError, match=r"CenterLoss\.feat_dim: expected 6, .* got 4"):
        layer(paddle.zeros([2, 6]), paddle.zeros([2], "int64"))
