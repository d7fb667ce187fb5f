from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.layers.tokens import ChannelNorm


def test_layer_scale_of_zero_adds_no_parameter() -> None:
    sizes = (1, 1, 1, 1), (4, 4, 6, 6)
    scaled, plain = (ConvNeXt(*sizes, layer_scale_init_value=value) for value in (0.25, 0.0))
    gammas = {name for name in scaled.state_dict() if name.endswith(".gamma")}
    assert len(gammas) == 4
    assert {*scaled.state_dict()} - {*plain.state_dict()} == gammas
    assert (scaled.state_dict()["stages.0.0.gamma"] == 0.25).all()


def test_head_init_scale_scales_initial_weights() -> None:
    paddle.seed(1)
    model = ConvNeXt((1, 1, 1, 1), (4, 4, 4, 100), head_init_scale=0.1)
    assert model.head.weight.numpy().std() == pytest.approx(0.002, rel=0.02)


def test_drop_path_applies_in_training_only() -> None:
    paddle.seed(1)
    model = ConvNeXt((1, 1, 1, 1), (4, 4, 4, 8), 2, drop_path_rate=0.5, layer_scale_init_value=1.0)
    x = paddle.randn([16, 3, 32, 32])
    model.eval()
    assert (model(x) == model(x)).all()
    model.train()
    assert not (model(x) == model(x)).all()


@pytest.mark.parametrize(("patch", "side"), [(1, 8), (2, 28), (4, 32)])
def test_patch_size_is_the_stride_of_the_first_convolution(patch: int, side: int) -> None:
    model = ConvNeXt((1, 1, 1, 1), (4, 4, 4, 8), 2, patch_size=patch)
    x = paddle.randn([1, 3, side, side])
    assert model.downsample_layers[0](x).shape == [1, 4, side // patch, side // patch]
    assert model(x).shape == [1, 2]


@pytest.mark.parametrize(("data_format", "axis"), [("NCHW", 1), ("NHWC", 3)])
def test_channel_norm_normalizes_channels(data_format: str, axis: int) -> None:
    shape = [2, 5, 5, 5]
    y = ChannelNorm(5, 1e-6, data_format)(paddle.randn(shape)).numpy()
    np.testing.assert_allclose(y.mean(axis), 0, atol=1e-6)
    np.testing.assert_allclose(y.std(axis), 1, atol=1e-3)
