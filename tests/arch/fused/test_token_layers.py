"""Which layers of transformers are fused, and what they compute, on a GPU or an emulated one."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.build import build_model
from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.fused import attention, gelu, layer_norm, linear, token_layers
from ppcls.arch.fused.token_layers import fuse_tokens
from ppcls.arch.layers.drop_path import StepMasks, attach_masks
from ppcls.arch.layers.transformer import Mlp, SelfAttention, TransformerBlock
from ppcls.arch.layers.windows import shift_mask
from ppcls.registry import ARCHITECTURES


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, attention, gelu, layer_norm)


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    tensor = paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))
    tensor.stop_gradient = False
    return tensor


def twins(name: str, **options: object) -> tuple[nn.Layer, nn.Layer]:
    """Returns two equal models, of which the second is fused."""
    own, fused = (build_model(name, 8, "NHWC", 3, **options) for _ in range(2))
    fused.set_state_dict(own.state_dict())
    assert fuse_tokens(fused) > 10
    for model in (own, fused):
        model.train()
        masks = StepMasks(1, 0)
        attach_masks(model, masks)
        masks.begin_step(0)
    return own, fused


# With fewer of the same blocks, because the emulator computes slowly
SHALLOW = {
    "ConvNeXt_tiny": partial(ConvNeXt, (1, 1, 2, 1), (96, 192, 384, 768)),
    "SwinTransformer_tiny_patch4_window7_224": partial(SwinTransformer, 96, (2, 1, 1, 1), 3, 7),
}


@pytest.mark.parametrize(
    ("name", "side", "options"),
    [
        ("DeiT_tiny_patch16_224", 32, {"img_size": 32, "drop_path_rate": 0.4}),
        ("ConvNeXt_tiny", 32, {"drop_path_rate": 0.4}),
        ("SwinTransformer_tiny_patch4_window7_224", 56, {}),
        ("PVT_V2_B0", 32, {}),
    ],
)
def test_fused_model_in_float32_matches_its_own_layers(
    name: str, side: int, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in SHALLOW:
        monkeypatch.setitem(ARCHITECTURES._entries, name, SHALLOW[name])
    own, fused = twins(name, **options)
    image = random((2, side, side, 3), 1)
    results = []
    for model in (own, fused):
        logits = model(image)
        logits.square().sum().backward()
        trained = {key: weight for key, weight in model.named_parameters() if not weight.stop_gradient}
        results.append((logits.numpy(), {key: weight.grad.numpy() for key, weight in trained.items()}))
    (logits, gradients), (others, other_gradients) = results
    np.testing.assert_allclose(others, logits, rtol=1e-3, atol=1e-4)
    for key, gradient in gradients.items():
        error = np.linalg.norm(other_gradients[key] - gradient)
        assert error <= 1e-3 * np.linalg.norm(gradient) + 1e-5, key


class HalfLinear(nn.Linear):  # type: ignore[misc]
    """A linear layer with half-precision inputs and outputs, also on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, x.astype("float32")).astype("float16")


@pytest.mark.parametrize("shifted", [False, True])
def test_fused_windows_in_half_precision_match_float32(shifted: bool) -> None:
    from ppcls.arch.families.swin_transformer import SwinAttention

    own, fused = (SwinAttention(64, 2, 4, 2, 0.0, 0.0) for _ in range(2))
    fused.qkv, fused.proj = HalfLinear(64, 192), HalfLinear(64, 64)
    fused.set_state_dict(own.state_dict())
    for attention_layer in (own, fused):
        attention_layer.relative_position_bias_table.set_value(random((49, 2), 3))
    assert fuse_tokens(fused) == 2
    mask = shift_mask(8, 12, 4) if shifted else None
    x, gradient = random((2, 8, 12, 64), 1), random((2, 8, 12, 64), 2)
    expected = own(x, mask)
    expected.backward(gradient)
    exact = x.grad.numpy().copy()
    x.clear_gradient()
    half = x.detach().astype("float16")
    half.stop_gradient = False
    output = fused(half, mask)
    output.backward(gradient.astype("float16"))
    np.testing.assert_allclose(output.astype("float32").numpy(), expected.numpy(), atol=5e-3)
    np.testing.assert_allclose(half.grad.astype("float32").numpy(), exact, atol=2e-2)
    table, other = own.relative_position_bias_table, fused.relative_position_bias_table
    scale = np.linalg.norm(table.grad.numpy())
    assert np.linalg.norm(other.grad.numpy() - table.grad.numpy()) < 5e-3 * scale


class OtherBlock(TransformerBlock):
    """A block that computes something else."""


def test_fuse_tokens_leaves_layers_that_compute_something_else() -> None:
    norm = nn.LayerNorm([4, 8])
    plain = nn.LayerNorm(8, weight_attr=False, bias_attr=False)
    dropping = SelfAttention(64, 2, attn_drop_rate=0.1)
    assert fuse_tokens(nn.Sequential(norm, plain)) == 0
    fuse_tokens(dropping)
    assert "mix" not in vars(dropping)
    block = OtherBlock(64, SelfAttention(64, 2), 128)
    fuse_tokens(block)
    assert "forward" not in vars(block)


def test_fuse_tokens_swin_v2_keeps_its_cosines() -> None:
    model = build_model("SwinTransformerV2_tiny_patch4_window8_256", 8, "NHWC", 3)
    fuse_tokens(model)
    layers = [layer for layer in model.sublayers() if isinstance(layer, SelfAttention)]
    assert layers
    assert not any("mix" in vars(layer) or "forward" in vars(layer) for layer in layers)


def test_linear_needs_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(16, 8)
    x = random((2, 16), 1)
    expected = layer(x).numpy()
    fuse_tokens(layer)
    monkeypatch.setattr(linear, "cublas", None)  # must not be called
    np.testing.assert_array_equal(layer(x).numpy(), expected)
    assert linear.find_problem(12, 8, paddle.float16) is not None
    assert linear.find_problem(16, 8, paddle.bfloat16) is None


def test_window_order_is_cached() -> None:
    assert token_layers._window_order(8, 8, 4, 2) is token_layers._window_order(8, 8, 4, 2)


def test_gelu_is_approximated_in_evaluations_only(monkeypatch: pytest.MonkeyPatch) -> None:
    approximate = []

    def multiply_gelu(x: Tensor, weight: Tensor, _bias: Tensor, **options: bool) -> Tensor:
        approximate.append(options["approximate"])
        return paddle.zeros([*x.shape[:-1], weight.shape[1]], x.dtype)

    monkeypatch.setattr(linear, "multiply_gelu", multiply_gelu)
    monkeypatch.setattr(linear, "multiply", lambda x, *_: x)
    mlp = Mlp(8, 16)
    fuse_tokens(mlp)
    x = paddle.zeros([2, 3, 8], "float16")
    with paddle.no_grad():
        mlp(x)  # as in the first pass of Global.recompute
        mlp.eval()
        mlp(x)
    mlp(x)  # for example for a heat map
    assert approximate == [False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "half"])
@pytest.mark.parametrize("kind", ["plain", "bias", "gelu"])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(394, 768, 2304), (128, 64, 1000), (8, 3072, 768)])
def test_multiply_matches_float64(
    rows: int, inputs: int, outputs: int, kind: str, stored: str, dtype: str
) -> None:
    weight_dtype = dtype if stored == "half" else stored
    biased = kind != "plain"
    values = [
        random((2, rows // 2, inputs), 1).astype(dtype),
        random((inputs, outputs), 2).astype(weight_dtype),
    ]
    values += [random((outputs,), 3).astype(weight_dtype)] if biased else []
    tensors = [value.detach() for value in values]
    gradient = random((2, rows // 2, outputs), 4).astype(dtype)
    for tensor in tensors:
        tensor.stop_gradient = False

    def multiply(approximate: bool) -> Tensor:
        operands = tensors[0], tensors[1], tensors[2] if biased else None
        gelu = partial(linear.multiply_gelu, approximate=approximate)
        return (gelu if kind == "gelu" else linear.multiply)(*operands)

    y = multiply(approximate=False)
    y.backward(gradient)
    with paddle.no_grad():
        predicted = multiply(approximate=True)
    exact = [paddle.to_tensor(t.astype("float32").numpy().astype("float64")) for t in tensors]
    for tensor in exact:
        tensor.stop_gradient = False
    expected = exact[0] @ exact[1] + (exact[2] if biased else 0.0)
    expected = F.gelu(expected) if kind == "gelu" else expected
    expected.backward(gradient.astype("float32").astype("float64"))
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    outputs_ = [(y, expected), (predicted, expected)]
    for value, reference in [*outputs_, *((t.grad, e.grad) for t, e in zip(tensors, exact, strict=True))]:
        error = np.linalg.norm(value.astype("float32").numpy() - reference.numpy())
        assert error <= tolerance * np.linalg.norm(reference.numpy())
