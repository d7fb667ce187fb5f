"""ML-Decoder against PaddleClas's, and as the head of several architectures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddleclas_reference import fill

from ppcls.arch.build import build_model
from ppcls.arch.layers.ml_decoder import MLDecoderHead, replace_head
from ppcls.errors import UserError
from ppcls.weights.files import start_from

SMALL = {"queries": 7, "width": 32, "heads": 4, "hidden": 48}


def paddleclas_decoder() -> Any:
    """PaddleClas's class; its file imports Paddle only."""
    package = importlib.util.find_spec("paddleclas")
    assert package is not None
    assert package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0]) / "ppcls/arch/gears/ml_decoder.py"
    spec = importlib.util.spec_from_file_location("paddleclas_ml_decoder", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MLDecoder


def test_logits_and_names_are_those_of_paddleclas() -> None:
    options = {"embed_dim": 32, "num_heads": 4, "mlp_hidden_dim": 48}
    reference = paddleclas_decoder()(class_num=10, in_channels=6, query_num=7, **options)
    ours = MLDecoderHead(6, 10, **SMALL)
    images = paddle.to_tensor(np.random.default_rng(0).standard_normal([2, 6, 5, 4]).astype(np.float32))
    expected, logits = [], []
    for model, found in ((reference, expected), (ours, logits)):
        fill(model)
        model.eval()
        found.append(model(images).numpy())
    assert {name: value.shape for name, value in ours.state_dict().items()} == {
        name: value.shape for name, value in reference.state_dict().items()
    }
    np.testing.assert_allclose(logits[0], expected[0], atol=1e-5)
    assert ours.query_pos_embed.weight.stop_gradient


@pytest.mark.parametrize("name", ["ResNet18", "PPLCNet_x0_25", "PPHGNetV2_B0"])
def test_both_layouts_compute_the_same(name: str) -> None:
    paddle.seed(0)
    images = paddle.randn([2, 3, 64, 64])
    models = {layout: build_model(name, 10, layout) for layout in ("NCHW", "NHWC")}
    for layout, model in models.items():
        replace_head(model, SMALL, 10, layout)
        model.eval()
    models["NHWC"].set_state_dict(models["NCHW"].state_dict())
    logits = models["NCHW"](images)
    assert logits.shape == [2, 10]
    np.testing.assert_allclose(
        models["NHWC"](images.transpose([0, 2, 3, 1])).numpy(), logits.numpy(), atol=1e-4
    )


def test_weights_of_the_plain_classifier_fill_all_but_the_head() -> None:
    plain, model = build_model("ResNet18", 1000), build_model("ResNet18", 10)
    replace_head(model, SMALL, 10, "NCHW")
    report = start_from(model, {name: value.numpy() for name, value in plain.state_dict().items()}, "FILE")
    assert report.random
    assert all(name.startswith("fc.") for name in report.random)
    assert (model.stem[0].conv.weight.numpy() == plain.stem[0].conv.weight.numpy()).all()
    own = {name: value.numpy() + 1 for name, value in model.state_dict().items()}
    assert start_from(model, own, "FILE").random == []
    assert (model.fc.input_proj.bias.numpy() == own["fc.input_proj.bias"]).all()


def test_architecture_without_the_layers_is_an_error() -> None:
    with pytest.raises(UserError, match=r"Arch\.ml_decoder: VGG has no linear layer 'fc'"):
        replace_head(build_model("VGG11", 10), SMALL, 10, "NCHW")
