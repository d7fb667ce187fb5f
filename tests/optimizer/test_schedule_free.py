"""Schedule-free AdamW: the sequences of the paper, its average, and its config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from paddle import nn

from ppcls.config.base.errors import ConfigError
from ppcls.engine.core.ema import ScheduleFreeAverage
from ppcls.optimizer.base import Optimizer
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.functional import SGD_RATE, ScheduleFreeAdamWOptimizer
from ppcls.optimizer.name_rules import factors
from ppcls.optimizer.state import load_optimizer_state, optimizer_state
from ppcls.recipe.schema import Config
from ppcls.registry import OPTIMIZERS


def make_spec(rate: float = 0.1, **fields: Any) -> Optimizer:
    lr = {"name": "Constant", "learning_rate": rate}
    kind: type[Optimizer] = OPTIMIZERS["ScheduleFreeAdamW"]
    return kind.model_validate({"lr": lr, **fields})


def make_layer(spec: Optimizer, half: str = "") -> tuple[nn.Layer, ScheduleFreeAdamWOptimizer]:
    layer = nn.Linear(3, 2)
    layer.weight.set_value(np.linspace(-1, 1, 6, dtype="float32").reshape(3, 2))
    if half:
        layer.to(dtype=half)
    optimizer = build_optimizer(spec, layer, multi_precision=bool(half))
    assert isinstance(optimizer, ScheduleFreeAdamWOptimizer)
    return layer, optimizer


def update(layer: nn.Layer, optimizer: ScheduleFreeAdamWOptimizer, step: int, rate: float) -> None:
    """Updates the layer with the gradients of `gradient`."""
    for name, parameter in layer.named_parameters():
        parameter.grad = paddle.to_tensor(gradient(step, name, parameter.shape)).astype(parameter.dtype)
    optimizer.set_lr(rate)
    optimizer.step()


def gradient(step: int, name: str, shape: list[int]) -> NDArray[np.float32]:
    return np.random.default_rng([step, len(name)]).standard_normal(shape).astype("float32")


OPTIMIZER = {"name": "ScheduleFreeAdamW", "lr": {"name": "Constant", "learning_rate": 0.01}}


class Paper:
    """Algorithm 1 of Defazio et al. 2024 for one parameter, in float64."""

    def __init__(self, start: NDArray[Any], spec: Any) -> None:
        self.spec = spec
        self.x = self.y = self.z = start.astype("float64")
        self.v = np.zeros_like(self.x)
        self.sum = 0.0
        self.step = 0

    def update(self, gradient: NDArray[Any], rate: float, decay: float) -> None:
        spec = self.spec
        self.step += 1
        self.v = spec.beta2 * self.v + (1 - spec.beta2) * gradient.astype("float64") ** 2
        rate = rate * np.sqrt(1 - spec.beta2**self.step)
        self.z = self.z - rate * (gradient / (np.sqrt(self.v) + spec.epsilon) + decay * self.y)
        self.sum += rate**2
        share = rate**2 / self.sum if self.sum else 0.0
        self.x = (1 - share) * self.x + share * self.z
        self.y = (1 - spec.beta1) * self.z + spec.beta1 * self.x


@settings(max_examples=25, deadline=None)
@given(
    rates=st.lists(st.sampled_from([0.0, 1e-4, 0.003, 0.01, 0.1]), min_size=1, max_size=12),
    beta1=st.sampled_from([0.0, 0.5, 0.9, 0.98]),
    beta2=st.sampled_from([0.9, 0.99, 0.999]),
    decay=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_weights_and_averages_are_those_of_the_paper(
    rates: list[float], beta1: float, beta2: float, decay: float
) -> None:
    spec = make_spec(beta1=beta1, beta2=beta2, weight_decay=decay, one_dim_param_no_weight_decay=True)
    layer, optimizer = make_layer(spec)
    average = ScheduleFreeAverage(layer, optimizer)
    papers = {name: Paper(each.numpy(), spec) for name, each in layer.named_parameters()}
    for step, rate in enumerate(rates):
        update(layer, optimizer, step, rate)
        for name, paper in papers.items():
            paper.update(gradient(step, name, list(paper.x.shape)), rate, decay if name == "weight" else 0.0)
        averages = average.state_dict()
        for name, weight in layer.named_parameters():
            np.testing.assert_allclose(weight.numpy(), papers[name].y, rtol=1e-4, atol=1e-6, err_msg=name)
            np.testing.assert_allclose(averages[name].numpy(), papers[name].x, rtol=1e-4, atol=1e-6)


def test_first_updates_of_a_warm_up_from_zero_change_nothing() -> None:
    layer, optimizer = make_layer(make_spec())
    before = layer.weight.numpy()
    average = ScheduleFreeAverage(layer, optimizer)
    for step in range(3):
        update(layer, optimizer, step, rate=0.0)
    np.testing.assert_array_equal(layer.weight.numpy(), before)
    np.testing.assert_array_equal(average.state_dict()["weight"].numpy(), before)
    update(layer, optimizer, 3, rate=0.1)
    assert np.isfinite(layer.weight.numpy()).all()
    assert (layer.weight.numpy() != before).all()


def test_average_is_the_weights_before_the_first_update() -> None:
    layer, optimizer = make_layer(make_spec())
    averages = ScheduleFreeAverage(layer, optimizer).state_dict()
    for name, weight in layer.named_parameters():
        np.testing.assert_array_equal(averages[name].numpy(), weight.numpy())


def test_constant_gradients_average_all_updates_equally() -> None:
    """With beta2 of 0, each update changes ``z`` by the rate, so the average of n updates is (n + 1) / 2."""
    layer, optimizer = make_layer(make_spec(beta2=0.0, weight_decay=0.0, epsilon=1e-30))
    average = ScheduleFreeAverage(layer, optimizer)
    start = layer.weight.numpy()
    for _ in range(9):
        layer.weight.grad = paddle.ones([3, 2])
        optimizer.step()
    np.testing.assert_allclose(average.state_dict()["weight"].numpy(), start - 0.1 * 5, rtol=1e-5, atol=1e-6)


def test_average_of_frozen_and_plain_sgd_weights_are_the_weights() -> None:
    """The centers of CenterLoss are updated by plain SGD."""
    layer = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    layer[0].weight.stop_gradient = True
    layer[1].weight.optimize_attr[SGD_RATE] = 0.5
    optimizer = build_optimizer(make_spec(), layer)
    average = ScheduleFreeAverage(layer, optimizer, frozen={"0.weight"})
    for step in range(3):
        for name, parameter in layer.named_parameters():
            if not parameter.stop_gradient:
                parameter.grad = paddle.to_tensor(gradient(step, name, parameter.shape))
        optimizer.step()
        average.update()
    averages = average.state_dict()
    assert averages.keys() == layer.state_dict().keys()
    same = {name for name, weight in layer.named_parameters() if (averages[name] == weight).all()}
    assert same == {"0.weight", "1.weight"}


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_average_of_half_weights_is_float32_and_resumes(half: str) -> None:
    spec = make_spec(rate=1e-4)
    layer, optimizer = make_layer(spec, half)
    exact, other = make_layer(spec)
    exact.set_state_dict({name: each.astype("float32") for name, each in layer.state_dict().items()})
    for step in range(4):
        update(layer, optimizer, step, 1e-4)
        update(exact, other, step, 1e-4)
    averages = ScheduleFreeAverage(layer, optimizer).state_dict()
    expected = ScheduleFreeAverage(exact, other).state_dict()
    for name, value in averages.items():
        assert value.dtype == paddle.float32
        np.testing.assert_allclose(value.numpy(), expected[name].numpy(), rtol=1e-4, atol=2e-6)
    resumed, again = make_layer(spec, half)
    resumed.set_state_dict(layer.state_dict())
    load_optimizer_state(again, resumed, optimizer_state(optimizer, layer))
    for name, value in ScheduleFreeAverage(resumed, again).state_dict().items():
        np.testing.assert_array_equal(value.numpy(), averages[name].numpy())


def test_rate_of_a_name_rule_changes_only_the_size_of_updates() -> None:
    spec = make_spec(weight_decay=0.0, by_name=[{"pattern": "weight", "lr_mult": 0.5}])
    layer, _ = make_layer(spec)
    slow = build_optimizer(spec, layer, factors=factors(spec, layer))
    average = ScheduleFreeAverage(layer, slow)
    paper = Paper(layer.weight.numpy(), spec)
    for step in range(5):
        update(layer, slow, step, 0.1)
        paper.update(gradient(step, "weight", [3, 2]), 0.05, 0.0)
    np.testing.assert_allclose(average.state_dict()["weight"].numpy(), paper.x, rtol=1e-4, atol=1e-6)


def test_moving_average_beside_it_is_an_error(make_config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"Optimizer\.name: ScheduleFreeAdamW averages the weights itself"):
        make_config(Optimizer=OPTIMIZER, EMA__decay=0.9)


@pytest.mark.parametrize(("schedule", "warns"), [("Constant", False), ("Cosine", True)])
def test_schedule_that_lowers_the_rate_gets_a_warning(
    make_config: Callable[..., Config], schedule: str, warns: bool
) -> None:
    lr = {"name": schedule, "learning_rate": 0.01, "warmup_epoch": 1}
    config = make_config(Optimizer={**OPTIMIZER, "lr": lr})
    found = [line for line in config.key_warnings if "averages the weights instead" in line]
    assert len(found) == warns
    assert all(line.startswith("warning: Optimizer.lr.name (Cosine) lowers the") for line in found)
