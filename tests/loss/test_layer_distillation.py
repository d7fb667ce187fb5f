"""Losses on layer outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paddleclas_trees import LABELS, MGD, PAIRS, PEFD, RKD, STAGES, attentive, distilled, patterned

from ppcls.arch.distillation_model import DistillationModel
from ppcls.config.base.errors import ConfigError
from ppcls.recipe.load import load_config

Tree = dict[str, Any]
CHANNELS = {"student_channels": 512, "teacher_channels": 512}


def layer_loss(loss: str, /, **keys: Any) -> Callable[[], Tree]:
    return lambda: patterned(STAGES, LABELS, {loss: PAIRS | keys})


def attention(**afd: Any) -> Callable[[], Tree]:
    def tree() -> Tree:
        changed = attentive()
        changed["Loss"]["Train"][-1]["AFDLoss"] |= afd
        return changed

    return tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            layer_loss("DistillationDistanceLoss", key="blocks[9]"),
            r"DistillationDistanceLoss: needs layer 'blocks\[9\]' of Student, but its return_patterns has "
            r"blocks\[1\], blocks\[3\], blocks\[5\], blocks\[7\]; add the layer to",
        ),
        (
            lambda: distilled("ResNet34", "ResNet18", LABELS, {"DistillationRKDLoss": PAIRS | RKD}),
            r"needs layer 'blocks\[7\]' of Student, but its return_patterns has nothing; add the layer to",
        ),
        (
            layer_loss("DistillationRKDLoss", **{**RKD, "teacher_keepkeys": ["a", "b"]}),
            r"DistillationRKDLoss.teacher_keepkeys: expected 1 layer, as many as in student_keepkeys, got 2",
        ),
        (layer_loss("DistillationRKDLoss", **{**RKD, "avgpool": True}), r"avgpool: expected False, got True"),
        (
            layer_loss("DistillationPairLoss", **MGD, **CHANNELS, student_channel=3),
            r"DistillationPairLoss.student_channels: expected either student_channels or student_channel",
        ),
        (
            layer_loss("DistillationPairLoss", **{**PEFD, "t_key": None}, **CHANNELS),
            r"DistillationPairLoss.t_key: expected either t_key or t_keys",
        ),
        (
            layer_loss("DistillationPairLoss", **{**MGD, "s_keys": ["a", "b"]}, **CHANNELS),
            r"DistillationPairLoss.s_keys: expected at most 1 item",
        ),
        (
            layer_loss("DistillationDistanceLoss", key="blocks[7]", model_name_pairs=[["Pupil", "Teacher"]]),
            r"Arch.models has no model 'Pupil'; expected Teacher, Student",
        ),
        (attention(s_shapes=[[64, 56, 56]]), r"AFDLoss: expected 8 shapes for Student, got 1"),
        (attention(qk_dim=64), r"AFDLoss: qk_dim is 64, but attention.qk_dim of Student is 128"),
        (attention(student_keys=["value"]), r"AFDLoss.student_keys"),
        (
            lambda: distilled("ResNet34", "ResNet18", LABELS, attentive()["Loss"]["Train"][-1]),
            r"AFDLoss: the model Student has no layers for this loss; list them in the key 'attention'",
        ),
        (
            lambda: distilled("ResNet34", "ResNet18", LABELS, {"MGDLoss": None}),
            r"MGDLoss: unknown loss; write DistillationPairLoss with base_loss_name: MGDLoss",
        ),
        (
            lambda: distilled("ResNet34", "ResNet18", LABELS, return_stages=[1]),
            r"Arch.models\[0\].Teacher.return_stages: unknown key; write return_patterns",
        ),
    ],
)
def test_layer_loss_error_names_key_and_fix(tree: Callable[[], Tree], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(tree())


def test_attention_model_becomes_its_backbone_with_attention_layers() -> None:
    arch = load_config(attentive()).Arch
    assert isinstance(arch, DistillationModel)
    assert {name: each.name for name, each in arch.members.items()} == {
        "Teacher": "ResNet34",
        "Student": "ResNet18",
    }
    assert (arch.frozen, arch.peers, arch.student) == (("Teacher",), (), "Student")
    student = arch.members["Student"]
    assert student.attention is not None
    assert student.attention.keys == student.return_patterns == tuple(f"blocks[{each}]" for each in range(8))


def test_plain_model_beside_an_attention_model_is_trainable_by_default() -> None:
    tree = attentive()
    tree["Arch"]["models"][1] = {"Student": {"name": "ResNet18"}}
    del tree["Loss"]["Train"][-1]  # AFDLoss, which needs the attention of both models
    arch = load_config(tree).Arch
    assert isinstance(arch, DistillationModel)
    assert (arch.frozen, arch.student) == (("Teacher",), "Student")


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "AttentionModel", "models": [{"A": {"name": "ResNet18"}}]},
        {"name": "AttentionModel", "models": [{"A": {"name": "ResNet18"}}, {"B": {"name": "ResNet34"}}]},
        {"name": "AttentionModel", "models": ["A", "B"]},
        {"name": "AttentionModel"},
    ],
)
def test_attention_model_in_another_form_is_unknown(keys: Tree) -> None:
    tree = attentive()
    tree["Arch"]["models"][1]["Student"] = keys
    with pytest.raises(ConfigError, match=r"Student.name: unknown architecture 'AttentionModel'"):
        load_config(tree)
