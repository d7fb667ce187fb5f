"""The numbers of each precision against explicit references."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from run_checkpoints import checkpoints_of
from small_net import (
    Flat,
    MemoryLoader,
    Net,
    assert_equal,
    content,
    evaluate,
    make_state,
    train_epochs,
    update,
)

from ppcls.arch.layers.transformer import MatrixProduct
from ppcls.engine.checkpoint.checkpoints import LATEST
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.build import build_state
from ppcls.engine.core.precision import FP32, AmpO1, AmpO2, RoundedBF16, build_precision
from ppcls.engine.core.settings import AMP
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.errors import UserError
from ppcls.optimizer.state import optimizer_state
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime
from ppcls.weights.files import WEIGHTS, read_arrays

RNG = np.random.default_rng(2)


def bfloat16(array: np.ndarray) -> np.ndarray:
    """Returns finite float32 rounded to bfloat16, half to even, by its bits."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


# float32


def test_float32_forward_is_exact() -> None:
    precision = build_precision(None, "cpu")
    assert type(precision) is type(build_precision(AMP(use_amp=False), "gpu")) is FP32
    layer, image = nn.Linear(3, 2), paddle.to_tensor(RNG.normal(size=(4, 3)).astype(np.float32))
    precision.prepare(layer, None)
    for context in (precision.forward(), precision.evaluation()):
        with context:
            found = layer(image)
        expected = image.numpy().astype(np.float64) @ layer.weight.numpy() + layer.bias.numpy()
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6)
    assert precision.state_dict() == {}
    precision.load_state_dict({})


def test_float32_backward_and_update_are_exact() -> None:
    layer = nn.Linear(3, 2)
    before = content(layer)
    sgd = paddle.optimizer.SGD(0.5, parameters=layer.parameters())
    FP32().backward(layer(paddle.ones([1, 3])).sum())
    update(FP32(), sgd)
    np.testing.assert_array_equal(layer.weight.numpy(), before["weight"] - np.float32(0.5))
    np.testing.assert_array_equal(layer.bias.numpy(), before["bias"] - np.float32(0.5))


# bfloat16 on a CPU


def rounded(level: str = "O1", use_fp16_test: bool = False) -> RoundedBF16:
    made = build_precision(AMP(dtype="bfloat16", level=level, use_fp16_test=use_fp16_test), "cpu")
    assert isinstance(made, RoundedBF16)
    return made


def test_rounded_bfloat16_linear_layer_rounds_operands_and_sums_in_float32() -> None:
    precision, layer = rounded(), nn.Linear(64, 5)
    x = RNG.normal(size=(7, 64)).astype(np.float32)
    weight, bias = layer.weight.numpy().copy(), RNG.normal(size=5).astype(np.float32)
    layer.bias.set_value(bias)
    precision.prepare(layer, None)
    image = paddle.to_tensor(x, stop_gradient=False)
    with precision.forward():
        out = layer(image)
    exact = bfloat16(x).astype(np.float64) @ bfloat16(weight) + bias
    np.testing.assert_allclose(out.numpy(), exact, rtol=1e-5, atol=1e-5)
    # It is not float32's product, nor is its result rounded
    assert np.abs(out.numpy() - (x @ weight + bias)).max() > 1e-3
    assert np.abs(out.numpy() - bfloat16(out.numpy())).max() > 1e-4

    gradient = RNG.normal(size=(7, 5)).astype(np.float32)
    precision.backward((out * paddle.to_tensor(gradient)).sum())
    # mixed precision gives gradients in bfloat16, 8 bits: within half of the last one
    for found, reference in (
        (layer.weight.grad, bfloat16(x).T.astype(np.float64) @ gradient),
        (image.grad, gradient @ bfloat16(weight).T.astype(np.float64)),
    ):
        np.testing.assert_allclose(found.numpy(), reference, rtol=2**-8, atol=1e-5)
        np.testing.assert_array_equal(found.numpy(), bfloat16(found.numpy()))
    np.testing.assert_allclose(layer.bias.grad.numpy(), gradient.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(layer.weight.numpy(), weight)


def test_rounded_bfloat16_attention_product_rounds_operands() -> None:
    precision, layer = rounded(), MatrixProduct(transposed=True)
    precision.prepare(nn.Sequential(layer), None)
    x, y = (RNG.normal(size=(2, 5, 64)).astype(np.float32) for _ in range(2))
    with precision.forward():
        out = layer(paddle.to_tensor(x), paddle.to_tensor(y)).numpy()
    exact = bfloat16(x).astype(np.float64) @ bfloat16(y).transpose(0, 2, 1)
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)
    plain = layer(paddle.to_tensor(x), paddle.to_tensor(y)).numpy()
    np.testing.assert_allclose(plain, x @ y.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rounded_bfloat16_convolution_rounds_operands(layout: str) -> None:
    precision = rounded()
    layer = nn.Conv2D(3, 4, 2, bias_attr=False, data_format=layout)
    precision.prepare(layer, None)
    x = RNG.normal(size=(2, 3, 5, 5)).astype(np.float32)
    image = paddle.to_tensor(x if layout == "NCHW" else x.transpose(0, 2, 3, 1))
    with precision.forward():
        out = layer(image).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(bfloat16(x).astype(np.float64), (2, 2), axis=(2, 3))
    expected = np.einsum("bchwij,ocij->bohw", windows, bfloat16(layer.weight.numpy()))
    expected = expected if layout == "NCHW" else expected.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_rounded_bfloat16_rounds_half_to_even() -> None:
    ties = np.arange(0x3F800000, 0x3F900000, 0x4000, dtype=np.uint32).view(np.float32)
    spread = RNG.normal(size=9999) * 10.0 ** RNG.uniform(-30, 30, 9999)
    x = np.concatenate([ties, -ties, spread.astype(np.float32), np.zeros(1, np.float32)])
    layer = nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(np.ones((1, 1), np.float32))
    precision = rounded()
    precision.prepare(layer, None)
    with precision.forward():
        found = layer(paddle.to_tensor(x[:, None])).numpy()[:, 0]
    np.testing.assert_array_equal(found, bfloat16(x))


def test_rounded_bfloat16_small_updates_accumulate_in_exact_weights() -> None:
    """Steps of 2**-12 are lost on bfloat16 weights of 1."""
    precision, layer = rounded(), nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(np.ones((1, 1), np.float32))
    sgd = paddle.optimizer.SGD(2.0**-12, parameters=layer.parameters())
    precision.prepare(layer, sgd)
    for _ in range(16):
        with precision.forward():
            loss = layer(paddle.ones([1, 1])).sum()
        precision.backward(loss)
        update(precision, sgd)
        sgd.clear_grad()
    assert layer.weight.dtype == paddle.float32
    assert layer.weight.item() == 1 - 16 * 2.0**-12


@pytest.mark.parametrize("raises", [False, True])
def test_rounded_bfloat16_restores_the_weights_after_forward(raises: bool) -> None:
    precision, model = rounded(), Net()
    precision.prepare(model, None)
    weights = [model.conv.weight, model.fc.weight]
    # a wrong number of channels raises in the first layer, when weights are rounded
    image = paddle.to_tensor(RNG.normal(size=(2, 2 if raises else 3, 4, 4)).astype(np.float32))

    def forward() -> None:
        with precision.forward():
            assert model.fc.weight is not weights[1]
            model(image)

    if raises:
        with pytest.raises(ValueError, match="channel"):
            forward()
    else:
        forward()
    assert model.conv.weight is weights[0]
    assert model.fc.weight is weights[1]
    assert [id(each) for each in model.parameters()][:1] == [id(weights[0])]
    x = paddle.full([1, 4], 1 + 2.0**-12)
    expected = x.numpy() @ model.fc.weight.numpy() + model.fc.bias.numpy()
    np.testing.assert_allclose(model.fc(x).numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("level", "use_fp16_test", "rounds"), [("O1", False, False), ("O1", True, True), ("O2", False, True)]
)
def test_rounded_bfloat16_evaluation_rounds_as_mixed_precision(
    level: str, use_fp16_test: bool, rounds: bool
) -> None:
    precision, layer = rounded(level, use_fp16_test), nn.Linear(8, 3)
    precision.prepare(layer, None)
    image = paddle.to_tensor(RNG.normal(size=(2, 8)).astype(np.float32))
    plain = layer(image).numpy()
    with precision.evaluation():
        found = layer(image).numpy()
    assert np.array_equal(found, plain) is not rounds


def test_rounded_bfloat16_training_follows_float32() -> None:
    losses = {}
    for precision in (FP32(), rounded()):
        state = make_state(precision=precision)
        losses[precision.name] = [
            float(train_step(state, batch)[0]) / batch.valid for _ in range(4) for batch in state.loader
        ]
    exact, near = losses.values()
    assert exact != near
    np.testing.assert_allclose(near, exact, rtol=0.02)
    assert all(tensor.dtype == paddle.float32 for tensor in state.model.state_dict().values())


def test_build_precision_float16_on_a_cpu_is_an_error_with_a_fix() -> None:
    with pytest.raises(
        UserError, match=r"AMP\.dtype: float16 needs a GPU.*-o AMP\.dtype=bfloat16 or -o AMP\.u"
    ):
        build_precision(AMP(), "cpu")


def test_build_precision_on_a_gpu_selects_by_level() -> None:
    assert type(build_precision(AMP(dtype="bfloat16"), "gpu")) is AmpO1
    assert type(build_precision(AMP(dtype="bfloat16", level="O2"), "gpu")) is AmpO2
    assert build_precision(AMP(dtype="bfloat16", level="O2"), "gpu").name == "AMP O2 bfloat16"


# Loss scaling: its arithmetic runs on a CPU too


class ScaledOnCpu(AmpO1):
    """O1 with a loss scale, as on a GPU, but in float32."""

    def forward(self) -> Any:
        return FP32().forward()


def scaled(**settings: Any) -> AmpO1:
    return ScaledOnCpu(AMP(**settings))


def test_scaled_loss_gives_the_same_update() -> None:
    plain, other = make_state(), make_state(precision=scaled(scale_loss=4096.0))
    for state in (plain, other):
        train_epochs(state)
    assert_equal(content(other.model), content(plain.model))  # a power of two changes no bit


class Poisoned(MemoryLoader):
    """Gives images that overflow at one step."""

    step = 1

    def __iter__(self) -> Any:
        for step, batch in enumerate(super().__iter__()):
            if step == self.step:
                batch.image.copy_(paddle.full_like(batch.image, float("inf")), True)
            yield batch


def hold_a_skipped_step(state: TrainState, scale: float) -> None:
    """Holds that the second of two steps, which overflows, changes no weight, halves the scale and counts."""
    assert state.ema is not None
    batches = iter(state.loader)
    train_step(state, next(batches))
    before = content(state.model)
    average = state.ema.state_dict()["fc.weight"].numpy().copy()
    assert state.precision.state_dict()["scale"] == scale
    train_step(state, next(batches))
    assert_equal(content(state.model), before)
    assert state.precision.state_dict()["scale"] == scale / 2
    assert state.update == 2
    assert not np.array_equal(state.ema.state_dict()["fc.weight"].numpy(), average)
    assert state.optimizer.get_lr() == pytest.approx(state.learning_rate(1))
    train_step(state, next(batches))
    assert not np.array_equal(state.model.fc.weight.numpy(), before["fc.weight"])
    assert np.isfinite(state.model.fc.weight.numpy()).all()


def test_overflow_skips_the_update_halves_the_scale_and_counts() -> None:
    state = make_state(model=Flat(), loader=Poisoned(), precision=scaled(scale_loss=1024.0), decay=0.5)
    hold_a_skipped_step(state, 1024.0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_overflow_restores_batch_norm_statistics(accumulate: int) -> None:
    loader = Poisoned(size=48, accumulate=accumulate)
    loader.step = 3 if accumulate == 2 else 1
    state = make_state(loader=loader, precision=scaled(scale_loss=1024.0), decay=0.5)
    batches = iter(state.loader)
    for _ in range(accumulate):
        train_step(state, next(batches))
    before = content(state.model)
    for _ in range(accumulate):
        train_step(state, next(batches))
    assert_equal(content(state.model), before)
    for _ in range(accumulate):
        train_step(state, next(batches))
    after = content(state.model)
    assert not np.array_equal(after["bn._mean"], before["bn._mean"])
    assert all(np.isfinite(each).all() for each in after.values())
    assert state.precision.state_dict()["scale"] == 512.0


def test_prepare_replaces_the_model_of_an_earlier_call() -> None:
    """So a step is tried on a probe before the model is there."""
    precision = scaled(scale_loss=1024.0)
    precision.prepare(nn.Linear(1, 1), None)
    precision.begin_step()
    state = make_state(loader=Poisoned(), precision=precision)
    train_epochs(state)
    assert all(np.isfinite(each).all() for each in content(state.model).values())


def test_fixed_scale_stays_after_overflow() -> None:
    precision = scaled(scale_loss=256.0, use_dynamic_loss_scaling=False)
    state = make_state(model=Flat(), loader=Poisoned(), precision=precision)
    weights = [state.model.fc.weight.numpy().copy()]
    for batch in state.loader:
        train_step(state, batch)
        weights.append(state.model.fc.weight.numpy().copy())
    changed = [not np.array_equal(one, other) for one, other in itertools.pairwise(weights)]
    assert changed == [True, False, True]
    assert precision.state_dict()["scale"] == 256.0


def test_precision_state_dict_restores_scale_and_counters() -> None:
    precision = scaled(scale_loss=1024.0)
    train_epochs(make_state(model=Flat(), loader=Poisoned(), precision=precision))
    kept = json.loads(json.dumps(precision.state_dict()))
    assert kept == {"scale": 512.0, "incr_count": 1, "decr_count": 0}
    again = scaled(scale_loss=2.0)
    again.load_state_dict(kept)
    assert again.state_dict() == kept
    parameter = paddle.create_parameter([1], "float32")
    again.backward(parameter.sum())
    assert parameter.grad.item() == 512.0


def test_fixed_scale_is_the_configs_after_resume() -> None:
    kept = scaled(scale_loss=1024.0).state_dict()
    fixed = scaled(scale_loss=8.0, use_dynamic_loss_scaling=False)
    fixed.load_state_dict(kept)
    assert fixed.state_dict()["scale"] == 8.0
    adapting = scaled(scale_loss=8.0)
    adapting.load_state_dict(scaled(scale_loss=1024.0, use_dynamic_loss_scaling=False).state_dict())
    assert adapting.state_dict()["scale"] == 1024.0


def test_resume_from_a_run_without_a_scale_starts_with_the_configs() -> None:
    precision = scaled(scale_loss=64.0)
    precision.load_state_dict({})
    assert precision.state_dict()["scale"] == 64.0


def test_bfloat16_has_no_loss_scale() -> None:
    precision = AmpO1(AMP(dtype="bfloat16"))
    assert precision.state_dict() == {}
    precision.load_state_dict({"scale": 2.0, "incr_count": 0, "decr_count": 0})
    assert precision.state_dict() == {}


# On a GPU


HALVES = pytest.mark.parametrize(
    ("level", "dtype"), [("O1", "float16"), ("O1", "bfloat16"), ("O2", "float16"), ("O2", "bfloat16")]
)


def on_gpu(level: str, dtype: str, **state: Any) -> TrainState:
    precision = build_precision(AMP(level=level, dtype=dtype, scale_loss=1024.0), "gpu")
    if (level, dtype) == ("O2", "bfloat16"):
        state.setdefault("kind", paddle.optimizer.AdamW)  # Paddle 2.6's Momentum knows no bfloat16
    return make_state(precision=precision, **state)


@pytest.mark.gpu
@HALVES
def test_mixed_precision_trains(level: str, dtype: str) -> None:
    state = on_gpu(level, dtype)
    losses = [sum(float(train_step(state, batch)[0]) for batch in state.loader) / 20 for _ in range(12)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.95 * losses[0]
    half = paddle.float16 if dtype == "float16" else paddle.bfloat16
    assert state.model.conv.weight.dtype == (half if level == "O2" else paddle.float32)
    assert state.model.bn._mean.dtype == paddle.float32


@pytest.mark.gpu
@HALVES
def test_mixed_precision_evaluation_agrees_with_float32(level: str, dtype: str) -> None:
    state = train_epochs(on_gpu(level, dtype, loader=MemoryLoader(size=1000, batch_size=50)), 4)
    state.precision._eval_half = True  # type: ignore[attr-defined]
    loader = MemoryLoader(size=1000, batch_size=64, shuffle=False)
    half = evaluate(state.model, loader, state.criterion, state.metrics, state.precision)
    whole = Net()
    whole.set_state_dict({name: each.astype("float32") for name, each in state.model.state_dict().items()})
    loader = MemoryLoader(size=1000, batch_size=64, shuffle=False)
    exact = evaluate(whole, loader, state.criterion, state.metrics, FP32())
    assert half.images == exact.images == 1000
    # a change of rank needs two scores nearer than a rounding: of float16 2**-11, of bfloat16 2**-8
    close = 0.005 if dtype == "float16" else 0.03
    assert half.loss == pytest.approx(exact.loss, rel=close)
    for name, share in exact.metrics.items():
        assert abs(half.metrics[name] - share) <= close


@pytest.mark.gpu
@HALVES
def test_checkpoint_holds_float32_and_resumes_bit_for_bit(
    level: str, dtype: str, make_config: Callable[..., Config], tmp_path: Path
) -> None:
    state = train_epochs(on_gpu(level, dtype, decay=0.9), 2)
    checkpoints_of(tmp_path, make_config()).save(state, [LATEST])
    saved = read_arrays(tmp_path / LATEST / WEIGHTS)
    assert {array.dtype for array in saved.values()} == {np.dtype(np.float32)}
    kept = optimizer_state(state.optimizer, state.model)
    if level == "O2":
        np.testing.assert_array_equal(saved["conv.weight"], kept["conv.weight/master"].numpy())
        assert not np.array_equal(saved["conv.weight"], bfloat16(saved["conv.weight"]))
    else:
        np.testing.assert_array_equal(saved["conv.weight"], state.model.conv.weight.numpy())

    again = on_gpu(level, dtype, decay=0.9, seed=2)
    resume(again, tmp_path / LATEST)
    for one, other in ((again, state), (train_epochs(again), train_epochs(state))):
        assert_equal(content(one.model), content(other.model))
        assert_equal(optimizer_state(one.optimizer, one.model), optimizer_state(other.optimizer, other.model))
        assert one.precision.state_dict() == other.precision.state_dict()


@pytest.mark.gpu
def test_optimizer_without_half_precision_kernel_is_an_error_before_training(
    make_config: Callable[..., Config],
) -> None:
    config = make_config(Global__device="gpu", AMP__level="O2", AMP__dtype="bfloat16")
    runtime = Runtime(device="gpu", device_id=0, cores=2, threads=2)
    if paddle.__version__.startswith("2."):
        with pytest.raises(UserError, match=r"AMP O2 bfloat16: Momentum of Paddle 2\.\d"):
            build_state(config, runtime, lambda *_: None)
    else:
        build_state(config, runtime, lambda *_: None)


@pytest.mark.gpu
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("model", [Flat, Net])
def test_overflow_on_a_gpu_skips_the_update(level: str, model: type[nn.Layer]) -> None:
    state = on_gpu(level, "float16", model=model(), loader=Poisoned(), decay=0.5)
    hold_a_skipped_step(state, 1024.0)


def test_images_float16_become_float32_without_casting() -> None:
    half = paddle.ones([1, 2], dtype="float16")
    assert FP32().images(half, training=True).dtype == paddle.float32
    assert RoundedBF16(AMP(dtype="bfloat16")).images(half, training=False).dtype == paddle.float32
    single = paddle.ones([1, 2])
    assert FP32().images(single, training=True) is single, "no copy"
