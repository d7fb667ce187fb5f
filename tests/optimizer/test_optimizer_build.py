"""Optimizers: updates compared with NumPy, weight decay rules and gradient clipping."""

import numpy as np
import paddle
import pytest
from optimizer_specs import COEFF, LR, NAMES, make_spec
from paddle import nn

from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.functional import SGD_RATE
from ppcls.optimizer.name_rules import Factors


class Model(nn.Layer):
    """Parameters ``head.weight`` [3, 2], ``head.bias`` [2] and ``pos_embed`` [2, 2]."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.pos_embed = self.create_parameter([2, 2])
        for index, parameter in enumerate(self.parameters()):
            rng = np.random.default_rng(index)
            parameter.set_value(rng.uniform(0.5, 2.0, parameter.shape).astype("float32"))


def gradients(model, step):
    rng = np.random.default_rng(100 + step)
    return {
        name: rng.standard_normal(each.shape).astype("float32") for name, each in model.named_parameters()
    }


def values(model):
    return {name: each.numpy().astype("float64") for name, each in model.named_parameters()}


def take_step(optimizer, model, grads):
    """Takes one update with the gradients ``grads``."""
    optimizer.clear_grad()
    loss = sum((each * paddle.to_tensor(grads[name])).sum() for name, each in model.named_parameters())
    loss.backward()
    optimizer.step()


def sgd(spec, p, g, m, t, lr, decay):
    return p - lr * g


def momentum(spec, p, g, m, t, lr, decay):
    m["v"] = spec.momentum * m.get("v", 0) + g
    return p - lr * (g + spec.momentum * m["v"] if spec.use_nesterov else m["v"])


def adam_step(spec, g, m, t):
    m["m"] = spec.beta1 * m.get("m", 0) + (1 - spec.beta1) * g
    m["v"] = spec.beta2 * m.get("v", 0) + (1 - spec.beta2) * g**2
    first, second = m["m"] / (1 - spec.beta1**t), m["v"] / (1 - spec.beta2**t)
    return first / (np.sqrt(second) + spec.epsilon)


def adam(spec, p, g, m, t, lr, decay):
    return p - lr * adam_step(spec, g, m, t)


def adamw(spec, p, g, m, t, lr, decay):
    return p - lr * decay * p - lr * adam_step(spec, g, m, t)


def rmsprop(spec, p, g, m, t, lr, decay):
    m["s"] = spec.rho * m.get("s", 0) + (1 - spec.rho) * g**2
    m["v"] = spec.momentum * m.get("v", 0) + lr * g / np.sqrt(m["s"] + spec.epsilon)
    return p - m["v"]


def lamb(spec, p, g, m, t, lr, decay):
    r = adam_step(spec, g, m, t) + decay * p
    trust = np.linalg.norm(p) / np.linalg.norm(r) if decay and p.any() and r.any() else 1.0
    return p - lr * trust * r


def lars(spec, p, g, m, t, lr, decay):
    norm_p, norm_g = np.linalg.norm(p), np.linalg.norm(g)
    if decay and norm_p and norm_g:
        lr = lr * spec.lars_coeff * norm_p / (norm_g + decay * norm_p + spec.epsilon)
    m["v"] = spec.momentum * m.get("v", 0) + lr * (g + decay * p)
    return p - m["v"]


def lion(spec, p, g, m, t, lr, decay):
    before = m.get("m", np.zeros_like(g))
    m["m"] = spec.beta2 * before + (1 - spec.beta2) * g
    return p - lr * (np.sign(spec.beta1 * before + (1 - spec.beta1) * g) + decay * p)


def schedule_free(spec, p, g, m, t, lr, decay):
    """Follows algorithm 1 of Defazio et al. 2024, with the parameter as ``y``."""
    z, x = m.get("z", p), m.get("x", p)
    m["v"] = spec.beta2 * m.get("v", 0) + (1 - spec.beta2) * g**2
    rate = lr * np.sqrt(1 - spec.beta2**t)
    m["z"] = z - rate * (g / (np.sqrt(m["v"]) + spec.epsilon) + decay * p)
    m["sum"] = m.get("sum", 0) + rate**2
    share = rate**2 / m["sum"]
    m["x"] = (1 - share) * x + share * m["z"]
    return (1 - spec.beta1) * m["z"] + spec.beta1 * m["x"]


UPDATES = {
    "SGD": sgd,
    "Momentum": momentum,
    "Adam": adam,
    "AdamW": adamw,
    "RMSProp": rmsprop,
    "Lamb": lamb,
    "LARS": lars,
    "Lion": lion,
    "Muon": adamw,  # without a hidden layer; see test_muon.py
    "ScheduleFreeAdamW": schedule_free,
}


def expected(spec, model, steps, exempt=(), factors=()):
    """Returns the parameters after ``steps`` updates; coupled decay is part of the gradient."""
    now, memory = values(model), {name: {} for name, _ in model.named_parameters()}
    for step in range(steps):
        for name, g in gradients(model, step).items():
            p, (rate, own) = now[name], dict(factors).get(name, (1, 1))
            decay = 0.0 if name in exempt else COEFF * own
            if spec.coupled:
                g = g + decay * p
            update = UPDATES[spec.kind]
            now[name] = update(spec, p, g.astype("float64"), memory[name], step + 1, LR * rate, decay)
    return now


CASES = [(name, {}) for name in NAMES] + [
    ("Momentum", {"use_nesterov": True, "momentum": 0.8}),
    ("Adam", {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3}),
    ("AdamW", {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3}),
    ("RMSProp", {"rho": 0.8, "momentum": 0.5, "epsilon": 1e-2}),
    ("Lamb", {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3}),
    ("LARS", {"momentum": 0.5, "lars_coeff": 0.5, "epsilon": 0.1}),
    ("Lion", {"beta1": 0.7, "beta2": 0.8}),
]
RULES = [
    ({}, ()),
    ({"no_weight_decay_name": "pos_embed .bias"}, ("pos_embed", "head.bias")),
    ({"one_dim_param_no_weight_decay": True}, ("head.bias",)),
    ({"one_dim_param_no_weight_decay": True, "no_weight_decay_name": "pos"}, ("pos_embed", "head.bias")),
]


@pytest.mark.parametrize(("rules", "exempt"), RULES)
@pytest.mark.parametrize(("name", "fields"), CASES)
def test_update_equals_formula(name, fields, rules, exempt):
    spec, model = make_spec(name, **fields, **rules), Model()
    want = expected(spec, model, 3, exempt)
    optimizer = build_optimizer(spec, model)
    for step in range(3):
        take_step(optimizer, model, gradients(model, step))
    for key, value in values(model).items():
        np.testing.assert_allclose(value, want[key], rtol=2e-5, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_update_uses_factors_per_parameter(name):
    fields = {"momentum": 0.5} if name == "RMSProp" else {}
    spec, model = make_spec(name, no_weight_decay_name="pos", **fields), Model()
    factors = {
        "head.weight": Factors(0.5, 2.0),
        "head.bias": Factors(3.0, 0.0),
        "pos_embed": Factors(1.0, 5.0),
    }
    want = expected(spec, model, 3, ("pos_embed",), factors)
    optimizer = build_optimizer(spec, model, factors=factors)
    for step in range(3):
        take_step(optimizer, model, gradients(model, step))
    for key, value in values(model).items():
        np.testing.assert_allclose(value, want[key], rtol=2e-5, atol=2e-6, err_msg=key)
    build_optimizer(spec, model)
    assert [each.optimize_attr["learning_rate"] for each in model.parameters()] == [1, 1, 1]


@pytest.mark.parametrize("name", ["Lamb", "LARS"])
def test_update_of_zero_weight_uses_plain_rate(name):
    spec, model = make_spec(name), Model()
    model.head.bias.set_value(np.zeros(2, "float32"))
    want = expected(spec, model, 2)
    optimizer = build_optimizer(spec, model)
    for step in range(2):
        take_step(optimizer, model, gradients(model, step))
    np.testing.assert_allclose(model.head.bias.numpy(), want["head.bias"], rtol=2e-5, atol=2e-6)
    assert np.isfinite(model.head.bias.numpy()).all()


def test_adamwdl_excludes_biases_and_norms_from_decay():
    model = Model()
    spec = make_spec("AdamWDL", layerwise_decay=0.5)
    before = values(model)
    take_step(
        build_optimizer(spec, model),
        model,
        {key: np.zeros_like(each, "float32") for key, each in before.items()},
    )
    for key, value in values(model).items():
        want = before[key] * (1 - LR * (0 if key == "head.bias" else COEFF))
        np.testing.assert_allclose(value, want, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_zero_gradient_without_decay_changes_nothing(name):
    model = Model()
    before = values(model)
    zeros = {key: np.zeros_like(value, dtype="float32") for key, value in before.items()}
    take_step(build_optimizer(make_spec(name, decay=0.0), model), model, zeros)
    for key, value in values(model).items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize("name", NAMES)
def test_second_optimizer_of_model_replaces_marks(name):
    model = Model()
    build_optimizer(make_spec(name, one_dim_param_no_weight_decay=True), model)
    optimizer, before = build_optimizer(make_spec(name), model), values(model)
    take_step(optimizer, model, {key: np.zeros_like(each, "float32") for key, each in before.items()})
    assert all((value < before[key]).all() for key, value in values(model).items())


def test_clip_norm_uses_global_norm_without_decay():
    spec = make_spec("SGD", clip_norm=0.5, one_dim_param_no_weight_decay=True)
    model = Model()
    before, grads = values(model), gradients(model, 0)
    norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in grads.values()))
    assert norm > 0.5
    take_step(build_optimizer(spec, model), model, grads)
    for key, value in values(model).items():
        decay = 0.0 if key == "head.bias" else COEFF
        want = before[key] - LR * (grads[key] * 0.5 / norm + decay * before[key])
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def test_clip_norm_keeps_small_gradients():
    model = Model()
    before, grads = values(model), gradients(model, 0)
    take_step(build_optimizer(make_spec("SGD", decay=0.0, clip_norm=1e3), model), model, grads)
    for key, value in values(model).items():
        np.testing.assert_allclose(value, before[key] - LR * grads[key], rtol=1e-6, atol=1e-6)


def test_clip_value_clips_each_element():
    model = Model()
    before, grads = values(model), gradients(model, 0)
    take_step(build_optimizer(make_spec("SGD", decay=0.0, clip_value=0.1), model), model, grads)
    for key, value in values(model).items():
        np.testing.assert_allclose(
            value, before[key] - LR * np.clip(grads[key], -0.1, 0.1), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", NAMES)
def test_set_lr_sets_rate_of_next_update(name):
    spec, model = make_spec(name, **({"momentum": 0.0} if name == "LARS" else {})), Model()
    optimizer = build_optimizer(spec, model)
    assert optimizer.get_lr() == LR
    for rate in (0.0, 0.2, 0.0):
        before = values(model)
        optimizer.set_lr(rate)
        take_step(optimizer, model, gradients(model, 0))
        moved = any((value != before[key]).any() for key, value in values(model).items())
        # the velocity of RMSProp and LARS contains past rates; with a momentum of 0 a rate of 0 stops it
        assert moved == (rate > 0)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["LARS", "Lion"])
def test_half_precision_weights_are_rounded_masters(name, half):
    exact, rounded = Model(), Model()
    for parameter in (*exact.parameters(), *rounded.parameters()):
        parameter.set_value(parameter.astype(half).astype("float32"))
    rounded.to(dtype=half)
    spec = make_spec(name)
    optimizers = [build_optimizer(spec, exact), build_optimizer(spec, rounded, multi_precision=True)]
    for step in range(3):
        for model, optimizer in zip((exact, rounded), optimizers, strict=True):
            for key, parameter in model.named_parameters():
                gradient = paddle.to_tensor(gradients(model, step)[key]).astype(half)
                parameter.grad = gradient.astype(parameter.dtype)
            optimizer.step()
    for (_, a), (key, b) in zip(exact.named_parameters(), rounded.named_parameters(), strict=True):
        master = optimizers[1]._master_weights[b.name]
        np.testing.assert_array_equal(master.numpy(), a.numpy(), err_msg=key)
        np.testing.assert_array_equal(b.astype("float32").numpy(), a.astype(half).astype("float32").numpy())


@pytest.mark.parametrize("name", NAMES)
def test_parameter_with_its_own_rate_is_updated_by_plain_sgd(name):
    model, reference = Model(), Model()
    model.pos_embed.optimize_attr[SGD_RATE] = 50.0
    optimizers = [build_optimizer(make_spec(name), network) for network in (model, reference)]
    before = values(model)["pos_embed"]
    for step in range(2):
        grads = gradients(model, step)
        for optimizer, network in zip(optimizers, (model, reference), strict=True):
            take_step(optimizer, network, grads)
        before = before - 50.0 * grads["pos_embed"]
    found, expected = values(model), values(reference)
    np.testing.assert_allclose(found.pop("pos_embed"), before, rtol=1e-5)
    assert {key: value.tolist() for key, value in found.items()} == {
        key: value.tolist() for key, value in expected.items() if key != "pos_embed"
    }
