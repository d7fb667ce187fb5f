"""WideResNet: size and names of PaddleClas's network, and its options."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

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


def test_layouts_agree_and_every_trained_parameter_gets_a_gradient() -> None:
    image = np.random.default_rng(0).standard_normal((4, 3, 33, 29), dtype=np.float32)
    options = {"class_num": 7, "depth": 10, "widen_factor": 1}
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


def test_depth_that_no_network_has_is_an_error() -> None:
    tree = {"Arch": {"name": "WideResNet", "depth": 20}, "Optimizer": {"name": "SGD"}}
    with pytest.raises(ConfigError, match=r"Arch\.depth: expected 6 n \+ 4 layers .*, such as 28, got 20"):
        load_config(tree)
    assert {"depth", "widen_factor"} <= {*ZOO["WideResNet"].options}
