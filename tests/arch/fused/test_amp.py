"""Dtypes under mixed precision."""

from __future__ import annotations

import paddle
import pytest
from paddle.base import core, framework

from ppcls.arch.fused.amp import amp_is_active, compute_dtype


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
