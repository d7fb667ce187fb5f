import numpy as np
import paddle
import pytest
from optimizer_specs import NAMES, make_spec
from paddle import nn

from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.state import load_optimizer_state, optimizer_state

KINDS = {
    "SGD": (),
    "Momentum": ("velocity",),
    "Adam": ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"),
    "AdamW": ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"),
    "RMSProp": ("momentum", "mean_square", "mean_grad"),
    "Lamb": ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"),
    "LARS": ("velocity",),
    "Lion": ("moment",),
    "Muon": ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"),  # without a hidden layer
    "ScheduleFreeAdamW": ("spread", "moment2", "correction", "rate_sum"),
}
HALVED = ("0.weight", "0.bias", "3.weight", "3.bias")  # as in O2, where batch norm stays float32
TRAINABLE = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")


def build(name, half=None):
    """Returns a model with batch norm, whose statistics no optimizer changes, and its optimizer."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.ReLU(), nn.Linear(8, 3))
    if half:
        for layer in (model[0], model[3]):
            layer.to(dtype=half)
    spec = make_spec(name, **({"momentum": 0.5} if name == "RMSProp" else {}))
    return model, build_optimizer(spec, model, multi_precision=half is not None)


def train(model, optimizer, steps):
    for step in steps:
        rng = np.random.default_rng(step)
        image = paddle.to_tensor(rng.standard_normal((4, 6)).astype("float32"))
        optimizer.set_lr(0.01 * (step + 1))
        model(image.astype(model[0].weight.dtype)).astype("float32").square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def numbers(tensors):
    return {key: each.astype("float32").numpy() for key, each in tensors.items()}


def assert_same(first, second):
    first, second = numbers(first), numbers(second)
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_state_resumes_bit_for_bit_in_new_model(name, tmp_path):
    model, optimizer = build(name)
    train(model, optimizer, range(3))
    paddle.save(model.state_dict(), str(tmp_path / "model"))
    paddle.save(optimizer_state(optimizer, model), str(tmp_path / "optimizer"))
    train(model, optimizer, range(3, 6))

    later, later_optimizer = build(name)
    assert later[0].weight.name != model[0].weight.name
    later.set_state_dict(paddle.load(str(tmp_path / "model")))
    load_optimizer_state(later_optimizer, later, paddle.load(str(tmp_path / "optimizer")))
    train(later, later_optimizer, range(3, 6))
    assert_same(model.state_dict(), later.state_dict())
    assert_same(optimizer_state(optimizer, model), optimizer_state(later_optimizer, later))


@pytest.mark.parametrize("name", NAMES)
def test_state_keys_are_equal_before_and_after_first_update(name):
    model, optimizer = build(name)
    fresh = set(optimizer_state(optimizer, model))
    assert fresh == {f"{parameter}/{kind}" for parameter in TRAINABLE for kind in KINDS[name]}
    train(model, optimizer, range(1))
    assert set(optimizer_state(optimizer, model)) == fresh


@pytest.mark.parametrize("name", NAMES)
def test_reading_state_before_first_update_changes_no_result(name):
    model, optimizer = build(name)
    twin, twin_optimizer = build(name)
    twin.set_state_dict(model.state_dict())
    optimizer_state(optimizer, model)
    train(model, optimizer, range(2))
    train(twin, twin_optimizer, range(2))
    assert_same(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_state_loads_over_existing_state(name):
    model, optimizer = build(name)
    other, other_optimizer = build(name)
    train(model, optimizer, range(3))
    train(other, other_optimizer, range(5, 7))
    other.set_state_dict(model.state_dict())
    load_optimizer_state(other_optimizer, other, optimizer_state(optimizer, model))
    train(model, optimizer, range(3, 5))
    train(other, other_optimizer, range(3, 5))
    assert_same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_state_includes_master_weights(name):
    model, optimizer = build(name, half="bfloat16")
    keys = {f"{parameter}/{kind}" for parameter in TRAINABLE for kind in KINDS[name]}
    keys |= {f"{parameter}/master" for parameter in HALVED}
    assert set(optimizer_state(optimizer, model)) == keys
    kept = {key: value.astype("float32") for key, value in model.state_dict().items()}
    state = {key: value + 1 for key, value in optimizer_state(optimizer, model).items()}
    later, later_optimizer = build(name, half="bfloat16")
    later.set_state_dict(model.state_dict())
    load_optimizer_state(later_optimizer, later, state)
    assert_same(optimizer_state(later_optimizer, later), state)
    assert_same(later.state_dict(), kept)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_state_with_master_weights_resumes_bit_for_bit(name):
    model, optimizer = build(name, half="float16")
    train(model, optimizer, range(3))
    later, later_optimizer = build(name, half="float16")
    later.set_state_dict(model.state_dict())
    load_optimizer_state(later_optimizer, later, optimizer_state(optimizer, model))
    train(model, optimizer, range(3, 6))
    train(later, later_optimizer, range(3, 6))
    assert_same(model.state_dict(), later.state_dict())
    assert_same(optimizer_state(optimizer, model), optimizer_state(later_optimizer, later))


def test_mismatch_names_keys_and_loads_nothing():
    model, optimizer = build("Momentum")
    state = {key: value + 1 for key, value in optimizer_state(optimizer, model).items()}
    del state["0.bias/velocity"]
    state["4.bias/velocity"] = paddle.zeros([3])
    state["3.bias/velocity"] = paddle.zeros([4])
    state["1.bias/velocity"] = state["1.bias/velocity"].astype("float64")
    with pytest.raises(ValueError, match="does not fit") as caught:
        load_optimizer_state(optimizer, model, state)
    assert str(caught.value) == (
        "the state does not fit the optimizer: "
        "1.bias/velocity: expected float32 [8], got float64 [8]; "
        "3.bias/velocity: expected float32 [3], got float32 [4]; "
        "missing 0.bias/velocity; unknown 4.bias/velocity"
    )
    assert all((value.numpy() == 0).all() for value in optimizer_state(optimizer, model).values())


def test_state_of_other_optimizer_is_rejected():
    model, optimizer = build("Momentum")
    _, adam = build("Adam")
    with pytest.raises(ValueError, match=r"missing 0\.bias/velocity"):
        load_optimizer_state(optimizer, model, {})
    with pytest.raises(KeyError):
        optimizer_state(adam, model)
