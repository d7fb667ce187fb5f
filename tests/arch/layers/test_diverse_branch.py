"""ResNet18 with Diverse Branch Blocks: PaddleClas's names and logits, and merging for inference."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddleclas_reference import CLASSES, OPTIONS, digest, fill, run
from paths import SUPPORT

from ppcls.arch.build import build_model
from ppcls.arch.cost import measure_on
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.layers.diverse_branch import DiverseBranchBlock, IdentityConv, PaddedNorm
from ppcls.arch.layers.reparameterize import reparameterize
from ppcls.arch.layers.residual import BasicBlock

NAME = "ResNet18_dbb"
SMALL = partial(ResNet, BasicBlock, (1, 1, 1, 1), class_num=5, **OPTIONS[NAME])


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """Values of PaddleClas, which test_architectures.py compares with its models."""
    with np.load(SUPPORT / "paddleclas_values.npz") as file:
        return {key.removeprefix(f"{NAME}/"): file[key] for key in file if key.startswith(f"{NAME}/")}


def draw(*shape: int) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(3).standard_normal(shape, dtype=np.float32))


def test_network_equals_paddleclas(
    reference: dict[str, np.ndarray],
) -> None:
    paddle.seed(1)
    model = build_model("ResNet18", class_num=CLASSES, **OPTIONS[NAME])
    state = model.state_dict()
    assert digest(model) == str(reference["names"])
    assert "blocks.0.short.conv.weight" not in state
    for key, (_, std, peak) in zip(sorted(state), reference["init"], strict=True):
        tensor = state[key]
        assert tensor.numpy().std() == pytest.approx(std, rel=0.2), key
        assert np.abs(tensor.numpy()).max() == pytest.approx(peak, rel=0.5), key
    found = run(model, NAME)
    for key in ("eval", "odd", "train"):
        theirs = reference[key]
        assert theirs.std() > 0
        np.testing.assert_allclose(found[key], theirs, rtol=0, atol=1e-3 * np.abs(theirs).max(), err_msg=key)


@settings(max_examples=20, deadline=None)
@given(
    kernel=st.sampled_from([1, 3, 5]),
    channels=st.sampled_from([(4, 4), (4, 6), (5, 3)]),
    stride=st.sampled_from([1, 2]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_reparameterize_block_keeps_outputs(
    kernel: int, channels: tuple[int, int], stride: int, layout: str
) -> None:
    block = DiverseBranchBlock(*channels, kernel, stride, data_format=layout)
    fill(block)
    block.eval()
    images = draw(2, channels[0], 7, 8) if layout == "NCHW" else draw(2, 7, 8, channels[0])
    before = block(images).numpy()
    reparameterize(block)
    np.testing.assert_allclose(block(images).numpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())
    assert {*block.state_dict()} == {"dbb_reparam.weight", "dbb_reparam.bias"}
    assert block.dbb_reparam.weight.shape == [*channels[::-1], kernel, kernel]


def test_reparameterize_network_keeps_logits_at_plain_cost() -> None:
    model = build_model("ResNet18", class_num=CLASSES, **OPTIONS[NAME])
    fill(model)
    model.eval()
    images = draw(2, 3, 64, 64)
    before = model(images).numpy()
    reparameterize(model)
    np.testing.assert_allclose(model(images).numpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())
    plain = build_model("ResNet18", class_num=CLASSES)
    projection = 64 * 64 * 16 * 16  # the first block's shortcut
    assert measure_on(model, images[:1]).flops == measure_on(plain, images[:1]).flops - projection


def test_layouts_agree_and_all_parameters_get_gradients() -> None:
    found = []
    for layout, axes in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1))):
        model = SMALL(data_format=layout)
        fill(model)
        model.train()
        logits = model(draw(4, 3, 64, 64).transpose(axes))
        (logits - logits.mean(0)).square().mean().backward()
        learning = {key: each for key, each in model.named_parameters() if not each.stop_gradient}
        assert {"blocks.1.conv0.dbb_1x1_kxk.idconv1.weight", "blocks.1.conv1.dbb_avg.bn.bn.bias"} < {
            *learning
        }
        for key, parameter in learning.items():
            assert np.isfinite(parameter.grad.numpy()).all(), key
            assert parameter.grad.numpy().any(), key
        found.append(logits.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-3 * np.abs(found[0]).max())


def test_new_identity_conv_is_identity() -> None:
    layer, images = IdentityConv(4, 4, 1, bias_attr=False), draw(2, 4, 3, 3)
    layer.weight.set_value(paddle.zeros_like(layer.weight))
    assert (layer(images).numpy() == images.numpy()).all()
    output = DiverseBranchBlock(4, 6, 3).dbb_1x1_kxk.idconv1
    assert (output(images).numpy() == images.numpy()).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_padded_norm_border_is_norm_of_zero(layout: str) -> None:
    norm = PaddedNorm(4, 2, layout)
    fill(norm)
    norm.eval()
    images = draw(2, 4, 5, 6) if layout == "NCHW" else draw(2, 5, 6, 4)
    edges = [0, 0, 2, 2, 2, 2, 0, 0] if layout == "NHWC" else [0, 0, 0, 0, 2, 2, 2, 2]
    pairs = list(zip(edges[::2], edges[1::2], strict=True))
    zeros_before = paddle.to_tensor(np.pad(images.numpy(), pairs))
    np.testing.assert_allclose(norm(images).numpy(), norm.bn(zeros_before).numpy(), atol=1e-6)


def test_compiled_block_trains_like_eager_block() -> None:
    block = DiverseBranchBlock(4, 6, 3, 2)
    fill(block)
    first = {key: value.numpy() for key, value in block.state_dict().items()}
    images, found = draw(4, 4, 8, 8), []
    for run_block in (block, paddle.jit.to_static(block, full_graph=True)):
        block.set_state_dict(first)
        block.train()
        output = run_block(images)
        output.square().mean().backward()
        gradient = block.dbb_1x1_kxk.bn1.bn.bias.grad.numpy()
        block.clear_gradients()
        mean = block.dbb_1x1_kxk.bn1.bn._mean.numpy()
        found.append([output.numpy(), gradient, mean])
    for plain, compiled in zip(*found, strict=True):
        assert plain.std() > 0
        np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-5 * np.abs(plain).max())
