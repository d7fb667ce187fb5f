"""Which attention uses Paddle's FlashAttention or plain operators, and what the log says.

On a CPU, Paddle's function computes with plain operators, so these tests check the operands and the choice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn

from ppcls.arch.build import build_model
from ppcls.arch.families.foundation_transformer import RotaryAttention
from ppcls.arch.families.swin_transformer import SwinAttention
from ppcls.arch.fused import attention, gelu, layer_norm
from ppcls.arch.fused.token_layers import fuse_tokens
from ppcls.arch.kernels import fallback, flash_attention
from ppcls.arch.kernels.flash_attention import AttentionShape, attend, find_problem
from ppcls.arch.layers.transformer import DotProductAttention, SelfAttention

FORMAT = "the kernels need float16 or bfloat16, got float32"


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    yield
    for function in (find_problem, fallback.report):
        function.cache_clear()


def attention_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the printed lines about attention; there is also one about linear layers in float32."""
    return [line for line in capsys.readouterr().err.splitlines() if ": attention: " in line]


@pytest.fixture
def _float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treats float32 as half precision, which a CPU has few operators for."""
    monkeypatch.setattr(attention, "DTYPES", (paddle.float32,))


@pytest.fixture
def _capable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "_find_device_problem", lambda: None)


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    tensor = paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))
    tensor.stop_gradient = False
    return tensor


def shape_of(**changes: int) -> AttentionShape:
    numbers = {"queries": 5, "keys": 7, "heads": 2, "width": 48, **changes}
    return AttentionShape(**numbers, dtype=paddle.float32)


@pytest.mark.parametrize("scale", [48**-0.5, 0.3])
def test_attend_arranges_operands_as_plain_operators(scale: float) -> None:
    query, key, value = random((3, 5, 96), 1), random((3, 7, 96), 2), random((3, 7, 96), 3)
    results = []
    for function in (lambda *parts: attend(*parts, 2, scale), DotProductAttention(2, scale)):
        output = function(query, key, value)
        output.square().sum().backward()
        results.append([output.numpy(), *(part.grad.numpy() for part in (query, key, value))])
        for part in (query, key, value):
            part.clear_gradient()
    for result, expected in zip(*results, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_capable")
def test_find_problem_compares_results_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    with paddle.no_grad():
        assert find_problem(shape_of()) is None
    right = flash_attention.flash_attention

    def differ(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
        return right(query, key, value)[0] + 0.2 * (query - query.detach()), None  # only the gradient differs

    monkeypatch.setattr(flash_attention, "flash_attention", differ)
    assert (find_problem(shape_of(heads=3)) or "").startswith("returns numbers that differ by ")


@pytest.mark.usefixtures("_capable")
def test_find_problem_calls_an_unsupported_shape_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*parts: Tensor) -> tuple[Tensor, None]:
        calls.append(parts)
        raise RuntimeError("(Unimplemented) FlashAttention is unsupported\n  [operator < flash_attn > error]")

    monkeypatch.setattr(flash_attention, "flash_attention", fail)
    for _ in range(2):
        assert find_problem(shape_of()) == "(Unimplemented) FlashAttention is unsupported"
    assert len(calls) == 1


@pytest.mark.usefixtures("_capable")
@pytest.mark.parametrize("width", [6, 264])
def test_find_problem_needs_a_supported_width(width: int) -> None:
    assert (find_problem(shape_of(width=width)) or "").startswith("supports heads whose width is a multiple")


@pytest.mark.parametrize(
    ("capability", "cuda", "problem"),
    [
        ((7, 5), "11.8", "needs compute capability 8.0, got 7.5"),
        ((8, 0), "11.8", None),
        ((9, 0), "11.8", "Paddle's package for CUDA 11 lacks it for Hopper GPUs"),
        ((9, 0), "12.6", None),
    ],
)
def test_find_problem_needs_a_supported_gpu(
    capability: tuple[int, int], cuda: str, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(paddle.version, "cuda", lambda: cuda)
    assert find_problem(shape_of()) == problem


def _layers() -> dict[str, tuple[nn.Layer, tuple[Tensor, ...]]]:
    tokens = random((2, 5, 96), 1)
    return {
        "self": (SelfAttention(96, 2), (tokens,)),
        "rotary": (RotaryAttention(96, 2, 1, bias=True), (tokens, random((2, 4, 48), 2))),
        "cross": (DotProductAttention(2, 0.3), (tokens, random((2, 7, 96), 2), random((2, 7, 96), 3))),
    }


@pytest.mark.usefixtures("_float32")
@pytest.mark.parametrize("kind", ["self", "rotary", "cross"])
@pytest.mark.parametrize("available", [True, False])
def test_wide_heads_use_flash_attention_or_report(
    kind: str, available: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device_problem = None if available else "needs a GPU"
    monkeypatch.setattr(flash_attention, "_find_device_problem", lambda: device_problem)
    layer, inputs = _layers()[kind]
    expected = layer(*inputs).numpy()
    calls = []
    right = flash_attention.attend

    def count(*arguments: object) -> Tensor:
        calls.append(arguments)
        return right(*arguments)

    fuse_tokens(layer)
    find_problem(AttentionShape(5, inputs[-1].shape[1] if kind == "cross" else 5, 2, 48, paddle.float32))
    monkeypatch.setattr(flash_attention, "attend", count)
    capsys.readouterr()
    for _ in range(2):
        np.testing.assert_allclose(layer(*inputs).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == (2 if available else 0)
    problem = "the kernels need heads of width 32 or 64, got 48"
    (line,) = attention_lines(capsys)
    if available:
        assert line == f"fused kernels: attention: Paddle's FlashAttention, because {problem}"
    else:
        expected_line = f"{problem}; Paddle's FlashAttention: needs a GPU"
        assert line == f"fused kernels: attention: Paddle's operators, because {expected_line}"


@pytest.mark.usefixtures("_float32", "_capable")
def test_trained_bias_of_large_windows_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    layer = SwinAttention(64, 2, 12, 0, 0.0, 0.0)
    x = random((1, 12, 12, 64), 1)
    expected = layer(x).numpy()
    fuse_tokens(layer)
    for _ in range(2):
        np.testing.assert_array_equal(layer(x).numpy(), expected)
    problem = "the kernels have gradients of a bias for at most 64 tokens, got 144"
    assert attention_lines(capsys) == [f"fused kernels: attention: Paddle's operators, because {problem}"]


def test_float32_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    for layer, inputs in _layers().values():
        fuse_tokens(layer)
        layer(*inputs)
    lines = {
        f"fused kernels: {part}: Paddle's operators, because {FORMAT}"
        for part in ("attention", "a linear layer")
    }
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == len(lines)
    assert set(printed) == lines


@pytest.mark.usefixtures("_float32")
def test_values_wider_than_keys_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    layer = DotProductAttention(2)
    fuse_tokens(layer)
    layer(random((1, 5, 64), 1), random((1, 5, 64), 2), random((1, 5, 128), 3))
    assert "the kernels need values and keys of the same width" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        (
            SelfAttention(64, 2, attn_drop_rate=0.1),
            "SelfAttention: Paddle's operators, because the kernels have no dropout",
        ),
        (
            DotProductAttention(2, None, 0.1),
            "DotProductAttention: Paddle's operators, because the kernels have no dropout",
        ),
        (
            nn.MultiHeadAttention(64, 2),
            "MultiHeadAttention: Paddle's operators, because the kernels do not support",
        ),
    ],
)
def test_layers_without_a_kernel_are_reported(
    layer: nn.Layer, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fuse_tokens(nn.Sequential(layer, layer))
    (text,) = capsys.readouterr().err.splitlines()
    assert text.startswith(f"fused kernels: {line}")


def test_swin_v2_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    fuse_tokens(build_model("SwinTransformerV2_tiny_patch4_window8_256", 8, "NHWC", 3))
    problem = "the kernels do not support this kind of attention"
    assert (
        capsys.readouterr().err == f"fused kernels: CosineAttention: Paddle's operators, because {problem}\n"
    )


def test_rotary_attention_uses_the_kernels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    emulate_gpu(monkeypatch, attention, gelu, layer_norm)
    layer = RotaryAttention(64, 2, 1, bias=True)
    half = [random((2, 2, 5, 32), seed).astype("float16") for seed in (1, 2, 3)]
    exact = [x.astype("float32") for x in half]
    expected = layer.mix_heads(*exact).numpy()
    fuse_tokens(layer)
    mixed = layer.mix_heads(*half).astype("float32").numpy()
    np.testing.assert_allclose(mixed, expected, atol=5e-3)
    assert not capsys.readouterr().err
