"""Backbones without their classifier, and cosine heads."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from pydantic import ValidationError

from ppcls.arch.build import build_model
from ppcls.arch.embedding import (
    CosineHead,
    EmbeddingConvolution,
    EmbeddingNetwork,
    EmbeddingNorm,
    remove_classifier,
)
from ppcls.arch.embedding import EmbeddingLinear as Neck
from ppcls.arch.rec_model import RecModel
from ppcls.engine.core.networks import build_network


@pytest.mark.parametrize(
    ("name", "size"), [("ResNet18", 512), ("PPLCNet_x0_25", 1280), ("MobileNetV3_small_x0_35", 1280)]
)
def test_remove_classifier_keeps_its_input(name: str, size: int) -> None:
    paddle.seed(1)
    model = build_model(name, 7)
    model.eval()
    image = paddle.randn([2, 3, 64, 64])
    linear = [each for each in model.sublayers() if isinstance(each, paddle.nn.Linear)][-1]
    weight, bias, logits = linear.weight.numpy(), linear.bias.numpy(), model(image).numpy()
    parameters = len(model.parameters())
    assert remove_classifier(model) == size
    features = model(image)
    assert features.shape == [2, size]
    np.testing.assert_allclose(features.numpy() @ weight + bias, logits, atol=1e-4)
    assert len(model.parameters()) == parameters - 2


def test_remove_classifier_without_linear_layer_is_rejected() -> None:
    with pytest.raises(ValueError, match="Sequential does not end in a linear layer"):
        remove_classifier(paddle.nn.Sequential(paddle.nn.Conv2D(3, 3, 1)))


def test_embedding_network_has_paddleclas_names_and_returns_cosines() -> None:
    backbone = build_model("ResNet18", 7)
    remove_classifier(backbone)
    model = EmbeddingNetwork(backbone, Neck(512, 8), CosineHead(8, 5), 8)
    names = {name for name in model.state_dict() if not name.startswith("backbone.")}
    assert names == {"neck.fc.weight", "neck.fc.bias", "head.weight"}
    model.eval()
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        outputs = model(paddle.randn([3, 3, 32, 32]))
    assert {name: each.shape for name, each in outputs.items()} == {
        "backbone": [3, 512],
        "features": [3, 8],
        "logits": [3, 5],
    }
    features, weight = outputs["features"].astype("float32").numpy(), model.head.weight.numpy()
    unit, directions = (
        each / np.linalg.norm(each, axis=axis, keepdims=True) for each, axis in ((features, 1), (weight, 0))
    )
    assert outputs["logits"].dtype == paddle.float32
    np.testing.assert_allclose(outputs["logits"].numpy(), unit @ directions, atol=1e-5)


@pytest.mark.parametrize(
    ("neck", "names"),
    [
        (EmbeddingConvolution(6, 6), {"conv.weight", "conv.bias"}),
        (EmbeddingNorm(6), {"feat_bn.weight", "feat_bn.bias", "feat_bn._mean", "feat_bn._variance"}),
    ],
)
def test_necks_have_paddleclas_names(neck, names) -> None:
    assert set(neck.state_dict()) == names
    assert neck(paddle.randn([4, 6])).shape == [4, 6]


def test_pplcnet_without_last_conv_classifies_the_pooled_blocks() -> None:
    model = build_model("PPLCNet_x0_25", 7, use_last_conv=False)
    assert {name for name in model.state_dict() if "last_conv" in name} == set()
    assert model.fc.weight.shape == [128, 7]
    assert model(paddle.randn([2, 3, 32, 32])).shape == [2, 7]


def test_options_of_strides_change_the_resolution() -> None:
    image = paddle.randn([1, 3, 64, 64])
    sizes = {}
    for stride in (1, 2):
        model = build_model("ResNet50", 2, last_stage_stride=stride)
        sizes[stride] = model.blocks(model.max_pool(model.stem(image))).shape
    assert sizes == {1: [1, 2048, 4, 4], 2: [1, 2048, 2, 2]}
    model = build_model("PPLCNet_x0_25", 2, stride_list=(2, (2, 1), (2, 1), (2, 1), (2, 1)))
    shapes = []
    model.blocks6.register_forward_post_hook(lambda *found: shapes.append(found[2].shape[2:]))
    model(image)
    assert shapes == [[2, 32]]
    model = build_model("ResNet18_vd", 2, stride_list=(2, (2, 1), (2, 1), (2, 1), 1))
    features = model.blocks(model.max_pool(model.stem(paddle.randn([1, 3, 48, 30]))))
    assert features.shape == [1, 512, 3, 15]
    assert model(image).shape == [1, 2]


def test_bias_of_neck_and_head_follow_the_config() -> None:
    tree = {
        "name": "RecModel",
        "Backbone": {"name": "ResNet18", "stem_act": "none"},
        "Neck": {
            "name": "BNNeck",
            "num_features": 512,
            "weight_attr": {"initializer": {"name": "Constant", "value": 0.5}},
            "bias_attr": {"initializer": {"name": "Constant"}, "learning_rate": 1e-20},
        },
        "Head": {
            "name": "FC",
            "embedding_size": 512,
            "class_num": 700,
            "weight_attr": {"initializer": {"name": "Normal", "std": 0.001}},
            "bias_attr": False,
        },
    }
    model = build_network(RecModel.model_validate(tree))
    assert (model.neck.feat_bn.weight.numpy() == 0.5).all()
    assert model.neck.feat_bn.bias.optimize_attr["learning_rate"] == 1e-20
    assert model.head.fc.bias is None
    assert abs(float(model.head.fc.weight.std()) - 0.001) < 0.0001
    images = paddle.ones([1, 3, 32, 32])
    model.eval()
    assert float(model.backbone.stem(images).min()) < 0, "no ReLU after the first convolution"
    for attribute, text in (
        ({"initializer": {"name": "Normal", "value": 1}}, "Normal does not support value; remove this key"),
        ({"learning_rate": -1}, "expected a number >= 0, got -1"),
    ):
        tree["Head"]["bias_attr"] = attribute
        with pytest.raises(ValidationError, match=text):
            RecModel.model_validate(tree)
