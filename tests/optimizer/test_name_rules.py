"""Selection of parameters by name: frozen ones, and factors of rate and decay."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.errors import UserError
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.name_rules import (
    Factors,
    classifier_layers,
    describe_frozen,
    factors,
    freeze,
    layer_rates,
)
from ppcls.optimizer.optimizers import AdamW, Momentum
from ppcls.optimizer.state import optimizer_state

LR = {"name": "Constant", "learning_rate": 0.1}


def make_spec(cls=Momentum, **fields):
    return cls.model_validate({"lr": LR, **fields})


class Net(nn.Layer):
    """``stem``, ``blocks.0`` and ``blocks.1``, each a convolution and a norm, and ``fc``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(3, 4, 1), nn.BatchNorm2D(4))
        self.blocks = nn.LayerList([nn.Sequential(nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4)) for _ in range(2)])
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + nn.functional.relu(block(x))
        return self.fc(x.mean([2, 3]))


def train(model, optimizer, steps=3):
    model.train()
    rng = np.random.default_rng(0)
    for _ in range(steps):
        model(
            paddle.to_tensor(rng.standard_normal((8, 3, 4, 4)).astype("float32"))
        ).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()


@pytest.mark.parametrize(
    "fields", [{"freeze": ["stem.*", "blocks.0.*"]}, {"train_only": ["blocks.1*", "fc.*"]}]
)
def test_freeze_keeps_parameters_and_statistics_without_state(fields) -> None:
    model, spec = Net(), make_spec(**fields)
    kept = freeze(spec, model)
    assert kept == {name for name in model.state_dict() if name.startswith(("stem.", "blocks.0."))}
    optimizer = build_optimizer(spec, model, factors=factors(spec, model))
    before = {name: each.numpy().copy() for name, each in model.state_dict().items()}
    train(model, optimizer)
    for name, each in model.state_dict().items():
        assert (each.numpy() == before[name]).all() == (name in kept), name
    assert {key.split("/")[0] for key in optimizer_state(optimizer, model)} == {
        name for name, each in model.named_parameters() if not name.endswith(("_mean", "_variance"))
    } - kept
    assert describe_frozen(kept, model) == (
        "frozen: 8 of 14 parameters, 0.00 of 0.00 million values; 2 BatchNorm layers keep their statistics"
    )


def test_freeze_norm_uses_running_statistics_in_training() -> None:
    model, image = Net(), paddle.rand([8, 3, 4, 4])
    freeze(make_spec(freeze="stem.*"), model)
    model.train()
    trained = model.stem(image).numpy()
    model.eval()
    np.testing.assert_array_equal(model.stem(image).numpy(), trained)


def test_freeze_norm_with_trained_bias_updates_statistics() -> None:
    model = Net()
    kept = freeze(make_spec(freeze="*.weight"), model)
    assert not any(name.endswith("_mean") for name in kept)
    assert not any(each._use_global_stats for each in model.sublayers() if isinstance(each, nn.BatchNorm2D))
    assert "BatchNorm" not in describe_frozen(kept, model)


def test_freeze_without_patterns_changes_nothing() -> None:
    model = Net()
    assert freeze(make_spec(), model) == frozenset()
    assert all(
        each.trainable for name, each in model.named_parameters() if not name.endswith(("mean", "variance"))
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"freeze": ["stem.*", "block.*"]},
            "Optimizer.freeze: 'block.*' matches no parameter of this model; did you mean 'blocks.*'?",
        ),
        (
            {"train_only": "zzz"},
            "Optimizer.train_only: 'zzz' matches no parameter of this model; known: blocks.*, fc.*, stem.*",
        ),
        (
            {"freeze": "*"},
            "Optimizer.freeze: the patterns match all parameters, so none remain to train; remove a pattern",
        ),
    ],
)
def test_invalid_pattern_is_rejected(fields, text) -> None:
    with pytest.raises(UserError) as caught:
        freeze(make_spec(**fields), Net())
    assert str(caught.value) == text


def test_factors_of_matching_rules_multiply() -> None:
    rules = [
        {"pattern": ["fc.*", "stem.0.*"], "lr_mult": 10},
        {"pattern": "*.bias", "decay_mult": 0, "lr_mult": 2},
    ]
    found = factors(make_spec(by_name=rules, regularizer={"name": "L2", "coeff": 0.1}), Net())
    assert found["fc.weight"] == Factors(10, 1)
    assert found["fc.bias"] == Factors(20, 0)
    assert found["blocks.0.1.bias"] == Factors(2, 0)
    assert "blocks.0.0.weight" not in found
    rules[1]["pattern"] = "head.*"
    with pytest.raises(UserError, match=r"Optimizer\.by_name\.1\.pattern: 'head.\*' matches no parameter"):
        factors(make_spec(by_name=rules, regularizer={"name": "L2", "coeff": 0.1}), Net())


def test_layer_rates_decrease_towards_input() -> None:
    found = factors(
        make_spec(AdamW, layerwise_decay=0.5, by_name=[{"pattern": "fc.bias", "lr_mult": 3}]), Net()
    )
    rates = {name: each.rate for name, each in found.items()}
    assert rates["stem.0.weight"] == 0.125
    assert rates["blocks.0.1.bias"] == 0.25
    assert rates["blocks.1.0.weight"] == 0.5
    assert "fc.weight" not in rates
    assert rates["fc.bias"] == 3


@pytest.mark.parametrize(
    ("names", "powers"),
    [
        # a vision transformer: PaddleClas's n_layers - i for blocks, n_layers + 1 for embeddings
        (
            [
                "cls_token",
                "patch_embed.proj.weight",
                "blocks.0.mlp.fc1.bias",
                "blocks.1.norm.bias",
                "norm.bias",
            ],
            [3, 3, 2, 1, 0],
        ),
        # Swin: blocks within stages
        (
            [
                "patch_embed.w",
                "layers.0.blocks.0.w",
                "layers.0.blocks.1.w",
                "layers.0.down.w",
                "layers.1.blocks.0.w",
            ],
            [5, 4, 3, 2, 1],
        ),
        (["_ef._conv_stem.w", "_ef._blocks.0..w", "_conv.w"], [2, 1, 0]),
        (["conv1.w", "layer1.0.w", "layer1.1.w", "layer2.0.w", "fc.w"], [4, 3, 2, 1, 0]),
    ],
)
def test_layer_rates_recognize_block_names(names, powers) -> None:
    found = layer_rates(names, 0.5)
    assert [found.get(name, 1) for name in names] == [0.5**power for power in powers]


def test_layerwise_decay_without_blocks_is_rejected() -> None:
    with pytest.raises(
        UserError, match=r"Optimizer\.layerwise_decay: no parameter of this model is in a numbered block"
    ):
        layer_rates(["conv1.weight", "fc.weight"], 0.5)


@pytest.mark.parametrize("name", ["ResNet18", "MobileNetV3_small_x0_35", "PPLCNet_x0_25", "EfficientNetB0"])
def test_layer_rates_head_has_full_rate(name) -> None:
    names = [key for key, _ in build_model(name, 4, "NCHW", 3).named_parameters()]
    found = layer_rates(names, 0.5)
    assert found[names[0]] == min(found.values())
    assert names[-1] not in found


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("ResNet18", ["fc"]),
        ("MobileNetV3_small_x0_35", ["fc"]),
        ("EfficientNet_lite0", ["classifier"]),
        ("DeiT_tiny_distilled_patch16_224", ["head", "head_dist"]),
        ("googlenet", ["_fc_out"]),
        ("squeezenet1_1", ["_conv9"]),
    ],
)
def test_pattern_classifier_matches_the_last_layer_of_each_architecture(
    architecture: str, expected: list[str]
) -> None:
    model = build_model(architecture, 7)
    trained = {name for name, parameter in model.named_parameters() if not parameter.stop_gradient}
    frozen = freeze(make_spec(train_only="classifier"), model)
    assert trained - frozen == {f"{layer}.{kind}" for layer in expected for kind in ("weight", "bias")}


def test_linear_layer_before_other_layers_is_no_classifier() -> None:
    assert classifier_layers(nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1D(7), nn.Linear(7, 7))) == ["2"]
