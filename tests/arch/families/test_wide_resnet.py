"""WideResNet: size and names of PaddleClas's network, and its options."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F

from ppcls.arch.build import build_model
from ppcls.config.base.errors import ConfigError
from ppcls.recipe.load import load_config
from ppcls.zoo import ZOO

NHWC = (0, 2, 3, 1)


def test_network_of_fixmatch_has_the_published_size_and_paddleclas_names() -> None:
    model = build_model("WideResNet", 10)
    sizes = {
        name: parameter.size
        for name, parameter in model.named_parameters()
        if not name.endswith(("_mean", "_variance"))
    }
    assert round(sum(sizes.values()) / 1e6, 1) == 1.5  # section 4.1 of the paper on FixMatch
    frozen = {name for name, parameter in model.named_parameters() if parameter.stop_gradient} & {*sizes}
    assert frozen == {
        f"block{stage}.layer.0.bn1.{name}" for stage in (2, 3) for name in ("weight", "bias")
    }  # which FixMatch's code never uses
    names = {name.replace(f"layer.{i}.", "") for name in model.state_dict() for i in range(4)}
    assert {"conv1.weight", "bn1._mean", "fc.bias", "block1.convShortcut.weight"} <= names
    assert model.block3.layer[0].convShortcut.weight.shape == [128, 64, 1, 1]
    assert len(model.block2.layer) == 4


@pytest.mark.parametrize("block", ["fixmatch", "original"])
def test_layouts_agree_and_every_trained_parameter_gets_a_gradient(block: str) -> None:
    image = np.random.default_rng(0).standard_normal((4, 3, 33, 29), dtype=np.float32)
    options = {"class_num": 7, "depth": 10, "widen_factor": 1, "wide_block": block}
    models = [build_model("WideResNet", data_format=layout, **options) for layout in ("NCHW", "NHWC")]
    models[1].set_state_dict(models[0].state_dict())
    logits = [
        model(paddle.to_tensor(pixels))
        for model, pixels in zip(models, (image, image.transpose(NHWC)), strict=True)
    ]
    np.testing.assert_allclose(logits[0].numpy(), logits[1].numpy(), rtol=0, atol=1e-4)
    logits[0].square().sum().backward()
    trained = [each for each in models[0].parameters() if not each.stop_gradient]
    assert all(each.grad.abs().max() > 0 for each in trained)


def test_original_blocks_train_all_parameters_and_have_the_published_size() -> None:
    """36.5 million for depth 28 and width 10 (table 4 of the paper). Both kinds have the same names."""
    model = build_model("WideResNet", 10, depth=28, widen_factor=10, wide_block="original")
    statistics = ("_mean", "_variance")
    trained = {name: each for name, each in model.named_parameters() if not name.endswith(statistics)}
    assert not any(each.stop_gradient for each in trained.values())
    assert round(sum(each.size for each in trained.values()) / 1e6, 1) == 36.5
    small = {"depth": 10, "widen_factor": 1}
    names = [
        list(build_model("WideResNet", 10, wide_block=kind, **small).state_dict())
        for kind in ("fixmatch", "original")
    ]
    assert names[0] == names[1]


def test_original_block_computes_the_formula_of_the_paper() -> None:
    model = build_model("WideResNet", 10, depth=10, widen_factor=2, wide_block="original")
    model.eval()
    block = model.block2.layer[0]  # with a convolution as its shortcut
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, 32, 8, 8), dtype=np.float32))
    inner = F.relu(block.bn1(x))
    expected = block.convShortcut(inner) + block.conv2(F.relu(block.bn2(block.conv1(inner))))
    np.testing.assert_allclose(block(x).numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)


def test_depth_that_no_network_has_is_an_error() -> None:
    tree = {"Arch": {"name": "WideResNet", "depth": 20}, "Optimizer": {"name": "SGD"}}
    with pytest.raises(ConfigError, match=r"Arch\.depth: expected 6 n \+ 4 layers .*, such as 28, got 20"):
        load_config(tree)
    assert {"depth", "widen_factor"} <= {*ZOO["WideResNet"].options}
