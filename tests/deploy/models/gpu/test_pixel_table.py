"""Pixels that are normalized by a table, on a GPU or an emulated one."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu

from ppcls.arch.fused import pixels as module
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import CropImage, DecodeImage, NormalizeImage, ToCHWImage
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.models.gpu.pixel_table import PixelTable, use_table

HALF = ["float16", "bfloat16"]


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, module)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("to_rgb", [True, False], ids=["RGB", "BGR"])
@pytest.mark.parametrize(
    "options", [{}, {"channel_num": 4}, {"output_fp16": True}, {"scale": 1.0, "mean": (0, 1, 2)}], ids=str
)
@pytest.mark.parametrize("shape", [(2, 16, 16, 3), (1, 5, 4, 3), (3, 40, 37, 3), (1, 3, 3, 3)])
def test_table_has_the_numbers_of_the_operators(
    shape: tuple[int, ...], options: dict[str, Any], to_rgb: bool, dtype: str
) -> None:
    specs = [DecodeImage(to_rgb=to_rgb), NormalizeImage(**options)]
    preparation = PreprocessingLayer(specs)
    table = use_table(preparation, getattr(paddle, dtype))
    assert isinstance(table, PixelTable)
    images = paddle.to_tensor(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    found = table(images)
    expected = preparation(images).astype(dtype)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype("float32").numpy(), expected.astype("float32").numpy())


@pytest.mark.parametrize(
    ("specs", "dtype"),
    [
        ([DecodeImage(), NormalizeImage()], "float32"),
        ([DecodeImage(), NormalizeImage(), ToCHWImage()], "float16"),
        ([DecodeImage(), CropImage(size=(4, 4)), NormalizeImage()], "float16"),
        ([DecodeImage()], "float16"),
    ],
    ids=str,
)
def test_other_preparations_stay(specs: list[Transform], dtype: str) -> None:
    preparation = PreprocessingLayer(specs)
    assert use_table(preparation, getattr(paddle, dtype)) is preparation


@pytest.mark.parametrize("dtype", [*HALF, "float32"])
@pytest.mark.parametrize("channels", [4, 8])
@pytest.mark.parametrize("shape", [(2, 16, 16, 3), (1, 5, 4, 3), (3, 3, 3, 3), (2, 4, 4, 1)])
def test_widen_appends_zeros(shape: tuple[int, ...], channels: int, dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x = paddle.to_tensor(values).astype(dtype)
    y = module.widen(x, channels)
    assert (y.shape, y.dtype) == ([*shape[:3], channels], x.dtype)
    first, rest = y.astype("float32").split([shape[3], channels - shape[3]], axis=3)
    np.testing.assert_array_equal(first.numpy(), x.astype("float32").numpy())
    assert not rest.numpy().any()


def test_widen_keeps_gradients() -> None:
    x = paddle.ones([1, 2, 2, 3], "float16")  # the kernel, which has no gradient, supports it otherwise
    x.stop_gradient = False
    module.widen(x, 4).astype("float32").sum().backward()
    np.testing.assert_array_equal(x.grad.astype("float32").numpy(), np.ones((1, 2, 2, 3)))
