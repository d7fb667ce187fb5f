from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from small_net import Net, assert_equal, content, make_state

from ppcls.engine.core.ema import Ema
from ppcls.engine.core.precision import build_precision
from ppcls.engine.core.settings import AMP
from ppcls.engine.core.step import train_step
from ppcls.optimizer.state import master_weights


def move(model: nn.Layer, seed: int) -> None:
    """Sets all that the average follows to other numbers."""
    rng = np.random.default_rng(seed)
    for tensor in model.state_dict().values():
        tensor.copy_(paddle.to_tensor(rng.normal(size=tensor.shape).astype(np.float32)), True)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9999])
def test_ema_update_follows_the_formula(decay: float) -> None:
    model = Net()
    ema = Ema(model, decay)
    expected = {name: each.astype(np.float64) for name, each in content(model).items()}
    assert_equal(ema.state_dict(), content(model))
    for seed in range(4):
        move(model, seed)
        ema.update()
        live = content(model)
        expected = {name: decay * each + (1 - decay) * live[name] for name, each in expected.items()}
    assert ema.state_dict().keys() == expected.keys()
    for name, tensor in ema.state_dict().items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_ema_warmup_raises_the_decay_to_its_maximum() -> None:
    model = Net()
    ema = Ema(model, 0.25, warmup=True)
    decays = [2 / 11, 0.25, 0.25]
    assert [ema.decay_at(done) for done in (1, 2, 10**6)] == decays
    assert Ema(model, 0.9999, warmup=True).decay_at(10**4) < 0.9999 == Ema(model, 0.9999).decay_at(1)
    expected = {name: each.astype(np.float64) for name, each in content(model).items()}
    for done, decay in enumerate(decays, start=1):
        move(model, done)
        ema.prepare(done)
        ema.update()
        live = content(model)
        expected = {name: decay * each + (1 - decay) * live[name] for name, each in expected.items()}
    for name, tensor in ema.state_dict().items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_ema_keep_statistics_replaces_the_averages_of_buffers() -> None:
    model = Net()
    ema = Ema(model, 0.9)
    first = content(model)
    buffers = {name for name, value in model.state_dict().items() if value.stop_gradient}
    kept = min(buffers)
    move(model, 1)
    ema.keep_statistics({kept})
    live = content(model)
    replaced = buffers - {kept}
    assert replaced
    assert_equal(ema.state_dict(), {name: live[name] if name in replaced else first[name] for name in first})


def test_ema_frozen_weights_are_not_averaged() -> None:
    model = Net()
    ema, first = Ema(model, 0.9, frozen={"conv.weight"}), content(model)
    for seed in range(3):
        move(model, seed)
        ema.update()
    assert {name for name, each in ema.state_dict().items() if (each.numpy() == first[name]).all()} == {
        "conv.weight"
    }


def test_ema_batch_norm_statistics_are_averaged() -> None:
    model = Net()
    ema = Ema(model, 0.75)
    model.train()
    model(paddle.randn([8, 3, 4, 4]) + 5.0)
    ema.update()
    for name, fresh in (("bn._mean", 0.0), ("bn._variance", 1.0)):
        live = model.state_dict()[name].numpy()
        assert np.abs(live - fresh).max() > 1e-3
        np.testing.assert_allclose(ema.state_dict()[name].numpy(), 0.75 * fresh + 0.25 * live, rtol=1e-5)


@pytest.mark.parametrize("raises", [False, True])
def test_ema_applied_restores_the_model_bit_for_bit(raises: bool) -> None:
    model = Net()
    ema = Ema(model, 0.5)
    move(model, 1)
    ema.update()
    raw, average = content(model), {name: each.numpy().copy() for name, each in ema.state_dict().items()}

    def use() -> None:
        with ema.applied():
            assert_equal(content(model), average)
            if raises:
                raise KeyboardInterrupt

    if raises:
        with pytest.raises(KeyboardInterrupt):
            use()
    else:
        use()
    assert_equal(content(model), raw)
    assert_equal(ema.state_dict(), average)
    assert [each.stop_gradient for each in model.parameters()] == [False] * 3 + [True] * 2 + [False] * 2


def test_ema_applied_keeps_the_parameter_objects() -> None:
    """Optimizers hold the parameters themselves, so they must stay the same objects."""
    model = Net()
    ema = Ema(model, 0.5)
    before = [id(each) for each in model.parameters()]
    sgd = paddle.optimizer.SGD(1.0, parameters=model.parameters())
    with ema.applied():
        pass
    raw = content(model)
    model(paddle.ones([2, 3, 4, 4])).sum().backward()
    sgd.step()
    assert [id(each) for each in model.parameters()] == before
    np.testing.assert_array_equal(model.fc.bias.numpy(), raw["fc.bias"] - np.float32(2.0))


def test_ema_of_half_weights_is_float32() -> None:
    layer = nn.Linear(3, 2)
    layer.to(dtype="float16")
    ema = Ema(layer, 0.999)
    with paddle.no_grad():
        layer.weight.copy_(paddle.zeros([3, 2], "float16"), True)
    start = ema.state_dict()["weight"].numpy().copy()
    ema.update()
    assert ema.state_dict()["weight"].dtype == paddle.float32
    np.testing.assert_allclose(ema.state_dict()["weight"].numpy(), start * 0.999, rtol=1e-6)
    with ema.applied():
        assert layer.weight.dtype == paddle.float16
    np.testing.assert_array_equal(layer.weight.numpy(), np.zeros((3, 2), np.float16))


def test_ema_averages_master_weights_instead_of_rounded_ones() -> None:
    """Ten updates of 2**-13: none reaches a float16 weight of 1, all of them reach its master."""
    layer = nn.Linear(1, 1, bias_attr=False)
    layer.to(dtype="float16")
    with paddle.no_grad():
        layer.weight.fill_(1.0)
    master = layer.weight.astype("float32").detach()
    ema, expected = Ema(layer, 0.5, {"weight": master}), 1.0
    for _ in range(10):
        master.copy_(master + 2.0**-13, True)
        with paddle.no_grad():
            layer.weight.copy_(master.astype("float16"), True)
        ema.update()
        expected = 0.5 * expected + 0.5 * master.item()
    assert ema.state_dict()["weight"].item() == pytest.approx(expected, abs=1e-7) != 1.0
    raw = layer.weight.numpy()
    with ema.applied():
        assert layer.weight.dtype == paddle.float16
        assert layer.weight.item() == np.float16(expected)
    np.testing.assert_array_equal(layer.weight.numpy(), raw)
    assert master.item() == 1 + 10 * 2.0**-13


@pytest.mark.gpu
def test_ema_under_o2_follows_the_master_weights() -> None:
    state = make_state(precision=build_precision(AMP(level="O2", scale_loss=8.0), "gpu"), decay=0.5)
    assert state.ema is not None
    expected = {
        name: state.ema.state_dict()[name].numpy().astype(np.float64)
        for name in master_weights(state.optimizer, state.model)
    }
    assert "conv.weight" in expected
    for batch in state.loader:
        train_step(state, batch)
        for name, master in master_weights(state.optimizer, state.model).items():
            expected[name] = 0.5 * expected[name] + 0.5 * master.numpy()
    for name, average in expected.items():
        np.testing.assert_allclose(state.ema.state_dict()[name].numpy(), average, rtol=1e-5, atol=1e-7)
        assert not np.array_equal(state.ema.state_dict()[name].numpy(), average.astype(np.float16))


@pytest.mark.parametrize(("decay", "warmup"), [(0.9, False), (0.9999, False), (0.0, False), (0.9999, True)])
def test_ema_initial_share_is_that_of_the_average(decay: float, warmup: bool) -> None:
    """If all weights are 1 at first and 0 later, the average is the share of the first ones."""
    model = nn.Linear(2, 2)
    model.weight.set_value(np.ones((2, 2), np.float32))
    ema = Ema(model, decay, warmup=warmup)
    model.weight.set_value(np.zeros((2, 2), np.float32))
    for done in range(1, 25):
        ema.prepare(done)
        ema.update()
        share = ema.state_dict()["weight"].numpy()
        np.testing.assert_allclose(share, ema.initial_share(done), rtol=1e-4, atol=1e-30)


def test_ema_warns_of_a_run_that_is_too_short() -> None:
    model = Net()
    (line,) = Ema(model, 0.9999).describe(epochs=8, updates_per_epoch=3)
    assert line == (
        "warning: evaluations and the best model use the moving average, which after all 24 updates of this "
        "run is still 100% initial weights, because EMA.decay is 0.9999; set "
        "EMA.warmup=True, or EMA.decay=0.883 or less, or train longer"
    )
    assert Ema(model, 0.883).initial_share(24) == pytest.approx(0.05, abs=0.001)
    assert Ema(model, 0.9999, warmup=True).describe(8, 3) == []
    assert Ema(model, 0.8).describe(8, 24) == []
    assert Ema(model, 0.0).describe(1, 1) == []


def test_ema_names_the_epoch_from_which_evaluations_rate_the_training() -> None:
    (line,) = Ema(Net(), 0.9999).describe(epochs=100, updates_per_epoch=5000)
    assert line.startswith("evaluations before epoch 6 partly rate the initial weights")
    assert Ema(Net(), 0.9999).initial_share(6 * 5000) < 0.05 < Ema(Net(), 0.9999).initial_share(5 * 5000)
