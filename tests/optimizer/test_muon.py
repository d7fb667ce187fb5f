"""Muon: updates compared with NumPy, which weights are matrices, and the state with master weights."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from optimizer_specs import COEFF, LR, make_spec
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.functional import orthogonalize
from ppcls.optimizer.name_rules import hidden_matrices
from ppcls.optimizer.state import load_optimizer_state, optimizer_state

MATRICES = {"2.weight", "6.weight"}


def make_model() -> nn.Layer:
    """Returns a model with a stem, convolutions, one of them depthwise, linear layers, and a classifier."""
    paddle.seed(0)
    return nn.Sequential(
        nn.Conv2D(3, 4, 3),
        nn.ReLU(),
        nn.Conv2D(4, 8, 2),
        nn.BatchNorm2D(8),
        nn.Conv2D(8, 8, 2, groups=8),
        nn.Flatten(),
        nn.Linear(32, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def train(model: nn.Layer, optimizer: paddle.optimizer.Optimizer, steps: range) -> None:
    for step in steps:
        for number, parameter in enumerate(model.parameters()):
            if parameter.stop_gradient:
                continue
            rng = np.random.default_rng([step, number])
            gradient = rng.standard_normal(parameter.shape).astype("float32")
            parameter.grad = paddle.to_tensor(gradient).astype(parameter.dtype)
        optimizer.step()


def reference(weight: NDArray[Any], gradients: list[NDArray[Any]]) -> NDArray[Any]:
    """Returns a matrix after Muon's updates (Jordan et al. 2024, with the size of Liu et al. 2025)."""
    velocity = np.zeros_like(weight)
    for gradient in gradients:
        velocity = 0.95 * velocity + gradient
        matrix = (gradient + 0.95 * velocity).reshape(len(weight), -1)
        x = matrix / np.linalg.norm(matrix)
        for _ in range(5):
            product = x @ x.T
            x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
        update = 0.2 * np.sqrt(max(x.shape)) * x.reshape(weight.shape)
        weight = weight - LR * (update + COEFF * weight)
    return weight


def test_update_equals_formula_and_others_are_those_of_adamw() -> None:
    model, other = make_model(), make_model()
    before = {name: each.numpy().astype("float64") for name, each in model.named_parameters()}
    train(model, build_optimizer(make_spec("Muon"), model), range(3))
    train(other, build_optimizer(make_spec("AdamW"), other), range(3))
    expected = dict(other.named_parameters())
    for number, (name, parameter) in enumerate(model.named_parameters()):
        want = expected[name].numpy()
        if name in MATRICES:
            steps = [np.random.default_rng([step, number]) for step in range(3)]
            want = reference(before[name], [rng.standard_normal(parameter.shape) for rng in steps])
        np.testing.assert_allclose(parameter.numpy(), want, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("shape", [(8, 20), (64, 16), (5, 5), (2, 300)])
def test_result_is_nearly_orthogonal(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape).astype("float32")
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    result = orthogonalize(paddle.to_tensor(1e-6 * matrix)).numpy()
    values = np.diag(left.T @ result @ right.T)
    assert ((values > 0.5) & (values < 1.3)).all()
    np.testing.assert_allclose(left @ np.diag(values) @ right, result, atol=1e-3)
    assert not orthogonalize(paddle.zeros(shape)).any()


@pytest.mark.parametrize(
    ("arch", "others"),
    [
        ("MobileNetV3_small_x0_35", r"conv\.conv\..*|.*\.bottleneck_conv\..*|fc\..*"),
        ("DeiT_tiny_patch16_224", r"patch_embed\..*|pos_embed|cls_token|head\..*"),
    ],
)
def test_hidden_matrices_are_all_but_the_first_the_last_and_depthwise_layers(arch: str, others: str) -> None:
    model = build_model(arch, class_num=4)
    names = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    assert hidden_matrices(model) == {name for name in names if not re.fullmatch(others, name)}


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_resumes_and_rounds_master_weights(half: str) -> None:
    exact, rounded, resumed = make_model(), make_model(), make_model()
    for parameter in (*exact.parameters(), *rounded.parameters()):
        parameter.set_value(parameter.astype(half).astype("float32"))
    for layer in (rounded[2], rounded[6], resumed[2], resumed[6]):
        layer.to(dtype=half)  # Paddle's AdamW has no half precision on a CPU
        layer.bias.trainable = False
    spec = make_spec("Muon")
    train(exact, built := build_optimizer(spec, exact), range(2))
    train(rounded, first := build_optimizer(spec, rounded, multi_precision=True), range(2))
    kinds = {kind.rpartition("/")[2] for kind in optimizer_state(first, rounded) if "6.weight" in kind}
    assert kinds == {"velocity", "master"}
    second = build_optimizer(spec, resumed, multi_precision=True)
    resumed.set_state_dict(rounded.state_dict())
    load_optimizer_state(second, resumed, optimizer_state(first, rounded))
    for model, optimizer in ((exact, built), (rounded, first), (resumed, second)):
        train(model, optimizer, range(2, 3))
    states = [optimizer_state(optimizer, model) for optimizer, model in ((first, rounded), (second, resumed))]
    for name in MATRICES:
        parameter = dict(exact.named_parameters())[name]
        master = states[0][f"{name}/master"].numpy()
        np.testing.assert_array_equal(master, states[1][f"{name}/master"].numpy())
        # The gradients of the exact model are not rounded to half precision.
        np.testing.assert_allclose(master, parameter.numpy(), rtol=0.1, atol=0.05, err_msg=name)
