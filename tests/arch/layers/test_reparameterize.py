from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn
from paddleclas_reference import fill

from ppcls.arch.build import build_model
from ppcls.arch.cost import count_parameters
from ppcls.arch.families.repvgg import RepVGG
from ppcls.arch.layers.conv_norm import ConvNorm, batch_norm
from ppcls.arch.layers.reparameterize import BranchedLayer, reparameterize


class Sum(BranchedLayer):
    """Branches with all kernels, and batch norm alone."""

    def __init__(
        self, kernels: list[int], channels: tuple[int, int], stride: int, groups: int, layout: str
    ) -> None:
        super().__init__()
        branches = [ConvNorm(*channels, kernel, stride, groups, data_format=layout) for kernel in kernels]
        if stride == 1 and channels[0] == channels[1]:
            branches.append(batch_norm(channels[0], layout))
        self.held = nn.LayerList(branches)
        self.branches = branches

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.add_up(x)

    def replace_branches(self, convolution: nn.Conv2D) -> None:
        self.held = nn.LayerList([convolution])


def agree(model: nn.Layer, images: paddle.Tensor) -> None:
    """Merges the branches of ``model`` and asserts that its outputs stay the same."""
    fill(model)
    model.eval()
    before = model(images).numpy()
    reparameterize(model)
    np.testing.assert_allclose(model(images).numpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())


def draw(*shape: int) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(3).standard_normal(shape, dtype=np.float32))


@settings(max_examples=20, deadline=None)
@given(
    kernels=st.sampled_from([[3, 1], [5, 3, 1], [3], [1, 1]]),
    channels=st.sampled_from([(4, 4), (4, 8)]),
    stride=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2, 4]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_reparameterize_layer_keeps_outputs(kernels, channels, stride, groups, layout):
    images = draw(2, 4, 7, 8) if layout == "NCHW" else draw(2, 7, 8, 4)
    model = Sum(kernels, channels, stride, groups, layout)
    several = len(model.branches) > 1
    agree(model, images)
    (left,) = model.held
    assert isinstance(left, nn.Conv2D) == several
    assert not several or left.weight.shape == [channels[1], 4 // groups, max(kernels), max(kernels)]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_reparameterize_repvgg_leaves_3x3_convolutions(layout):
    small = RepVGG((1, 2, 2, 1), 0.25, 0.5, 4, use_se=True, class_num=5, data_format=layout)
    agree(small, draw(2, 3, 32, 32) if layout == "NCHW" else draw(2, 32, 32, 3))
    convolutions = {name for name in small.state_dict() if ".rbr_" in name}
    blocks = ["stage0", "stage1.0", "stage2.0", "stage2.1", "stage3.0", "stage3.1", "stage4.0"]
    assert convolutions == {f"{block}.rbr_reparam.{part}" for block in blocks for part in ("weight", "bias")}
    assert all(small.state_dict()[name].shape[2:] in ([], [3, 3]) for name in convolutions)
    again = {name: value.numpy() for name, value in small.state_dict().items()}
    reparameterize(small)  # does nothing the second time
    assert all(np.array_equal(value.numpy(), again[name]) for name, value in small.state_dict().items())


def test_reparameterized_repvgg_has_published_size():
    """Table 4 of the paper."""
    model = build_model("RepVGG_A0")
    agree(model, draw(1, 3, 32, 32))
    assert count_parameters(model) == pytest.approx(8.30e6, rel=2e-3)


def test_reparameterized_pp_lcnet_v2_equals_paddleclas():
    model = build_model("PPLCNetV2_small", class_num=5)
    names = {name for name in model.state_dict() if ".dw_conv_list." not in name}
    agree(model, draw(2, 3, 32, 32))
    assert set(model.state_dict()) == names


def test_reparameterize_without_branches_changes_nothing():
    model = build_model("ShuffleNetV2_x0_25", class_num=5)
    names = {*model.state_dict()}
    agree(model, draw(2, 3, 32, 32))
    assert {*model.state_dict()} == names
