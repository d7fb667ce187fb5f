"""Necks and heads: their keys, and the layers that they build."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from specs import section_problems

from ppcls.arch.heads import FC, ArcMargin, BNNeck, NeckOrHead, VehicleNeck
from ppcls.registry import HEADS

SIZES: dict[str, dict[str, Any]] = {
    "VehicleNeck": {"in_channels": 6, "out_channels": 3},
    "BNNeck": {"num_features": 6},
    "Tanh": {},
    "CircleMargin": {"embedding_size": 6, "class_num": 3, "margin": 0.25, "scale": 64},
}


@pytest.mark.parametrize("name", list(HEADS))
def test_layers_have_the_sizes_of_their_keys(name: str) -> None:
    head: NeckOrHead = HEADS[name].model_validate(SIZES.get(name, {"embedding_size": 6, "class_num": 3}))
    assert head.is_neck or head.is_head
    assert head.input_size in (None, 6)
    assert head.build()(paddle.randn([2, 6])).shape == [2, head.output_size or 6]


def test_attributes_of_parameters_reach_the_layer() -> None:
    weight = {"initializer": {"name": "Constant", "value": 0.5}, "learning_rate": 0.1}
    layer = FC.model_validate(
        {"embedding_size": 2, "class_num": 3, "weight_attr": weight, "bias_attr": False}
    )
    built = layer.build().fc
    assert (built.weight.numpy() == 0.5).all()
    assert built.weight.optimize_attr["learning_rate"] == 0.1
    assert built.bias is None
    norm = BNNeck.model_validate({"num_features": 2, "bias_attr": {"learning_rate": 0.0}}).build().feat_bn
    assert norm.bias.optimize_attr["learning_rate"] == 0.0
    assert norm.weight.optimize_attr["learning_rate"] == 1.0
    default = FC(embedding_size=2, class_num=3).build().fc
    assert default.bias is not None


def test_invalid_keys_are_reported() -> None:
    initializer = {"name": "Normal", "value": 1.0}
    sizes = {"embedding_size": 2, "class_num": 3}
    assert section_problems(FC, {**sizes, "weight_attr": {"initializer": initializer}}) == {
        "weight_attr.initializer": "Normal does not support value; remove this key"
    }
    assert section_problems(VehicleNeck, {"in_channels": 2, "out_channels": 3, "kernel_size": 3}) == {
        "kernel_size": "expected 1, got 3"
    }
    assert section_problems(ArcMargin, {**sizes, "margin": -1}) == {
        "margin": "expected a number >= 0, got -1"
    }


def test_head_without_a_margin_changes_nothing() -> None:
    cosine = paddle.to_tensor(np.array([[0.5, -0.5]], "float32"))
    label = paddle.to_tensor([0])
    head = ArcMargin(embedding_size=2, class_num=2, margin=0.0, scale=1.0)
    np.testing.assert_allclose(head.apply_margin(cosine, label).numpy(), cosine.numpy(), atol=1e-6)


def test_new_neck_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEADS, "_entries", {name: HEADS[name] for name in HEADS})

    class ReluNeck(NeckOrHead):
        is_neck = True

        def build(self) -> nn.Layer:
            return nn.ReLU()

    assert HEADS["ReluNeck"] is ReluNeck
    assert ReluNeck().build()(paddle.to_tensor([-1.0])).numpy().tolist() == [0.0]
