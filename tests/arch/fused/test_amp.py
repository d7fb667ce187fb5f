"""Dtypes under mixed precision."""

from __future__ import annotations

import paddle
import pytest
from paddle.base import core, framework

from ppcls.arch.fused.amp import amp_is_active, cast, compute_dtype, rounded, rounded_weights


@pytest.mark.gpu
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_compute_dtype_follows_the_context_of_mixed_precision(level: str, dtype: str) -> None:
    x = paddle.ones([1])
    with paddle.amp.auto_cast(level=level, dtype=dtype):
        assert amp_is_active()
        assert compute_dtype(x) == getattr(paddle, dtype)
        with paddle.amp.auto_cast(enable=False):
            assert not amp_is_active()
    assert not amp_is_active()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_compute_dtype_is_read_from_the_attributes_that_the_context_sets(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = paddle.ones([1])
    assert not amp_is_active()
    assert compute_dtype(x) == paddle.float32
    # On a CPU without instructions for the dtype, paddle.amp.auto_cast does not set them.
    tracer = framework._dygraph_tracer()
    for name, value in (("_amp_level", core.AmpLevel.O1), ("_amp_dtype", dtype)):
        monkeypatch.setattr(tracer, name, value)
    assert amp_is_active()
    assert compute_dtype(x) == getattr(paddle, dtype)


def test_rounded_returns_the_copy_of_a_weight_and_its_gradient_reaches_the_weight() -> None:
    weight, other = (paddle.create_parameter([3, 4], "float32") for _ in range(2))
    copy = weight.detach().astype("float16")
    factor = paddle.arange(12, dtype="float32").reshape([3, 4]) + 0.1

    def gradient(half: paddle.Tensor) -> paddle.Tensor:
        weight.clear_gradient(False)
        (half.astype("float32") * factor).sum().backward()
        assert weight.grad.dtype == paddle.float32
        return weight.grad.clone()

    expected = gradient(cast(weight, paddle.float16))
    with rounded_weights([(weight, copy)]):
        half = rounded(weight, paddle.float16)
        assert half.data_ptr() == copy.data_ptr()
        assert half.shape == [3, 4]
        assert gradient(half).equal_all(expected)
        with paddle.no_grad():
            assert rounded(weight, paddle.float16) is copy
        assert rounded(weight, paddle.bfloat16).dtype == paddle.bfloat16
        assert rounded(weight, paddle.float32) is weight
        assert rounded(other, paddle.float16).dtype == paddle.float16
        weight.stop_gradient = True
        assert rounded(weight, paddle.float16).stop_gradient
        weight.stop_gradient = False
    assert rounded(weight, paddle.float16).data_ptr() != copy.data_ptr()
    assert gradient(rounded(weight, paddle.float16)).equal_all(expected)
