"""Losses of what layers give: what is told of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from paddleclas_trees import LABELS, MGD, PAIRS, PEFD, RKD, STAGES, attentive, distilled, patterned

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import load_config
from ppcls.config.objectives.distillation import DistillationModel

Tree = dict[str, Any]
CHANNELS = {"student_channels": 512, "teacher_channels": 512}


def of_layers(loss: str, /, **keys: Any) -> Callable[[], Tree]:
    return lambda: patterned(STAGES, LABELS, {loss: PAIRS | keys})


def attending(**afd: Any) -> Callable[[], Tree]:
    def tree() -> Tree:
        made = attentive()
        made["Loss"]["Train"][-1]["AFDLoss"] |= afd
        return made

    return tree


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            of_layers("DistillationDistanceLoss", key="blocks[9]"),
            r"DistillationDistanceLoss: is of Student's 'blocks\[9\]', and return_patterns of that model has "
            r"blocks\[1\], blocks\[3\], blocks\[5\], blocks\[7\]; add it there",
        ),
        (
            lambda: distilled("ResNet34", "ResNet18", LABELS, {"DistillationRKDLoss": PAIRS | RKD}),
            r"is of Student's 'blocks\[7\]', and return_patterns of that model has nothing; add it there",
        ),
        (
            of_layers("DistillationRKDLoss", **{**RKD, "teacher_keepkeys": ["a", "b"]}),
            r"DistillationRKDLoss.teacher_keepkeys: expected 1 layers, as student_keepkeys, got 2",
        ),
        (of_layers("DistillationRKDLoss", **{**RKD, "avgpool": True}), r"avgpool: expected False, got True"),
        (
            of_layers("DistillationPairLoss", **MGD, **CHANNELS, student_channel=3),
            r"DistillationPairLoss.student_channels: expected either this or student_channel",
        ),
        (
            of_layers("DistillationPairLoss", **{**PEFD, "t_key": None}, **CHANNELS),
            r"DistillationPairLoss.t_key: expected either this or t_keys",
        ),
        (
            of_layers("DistillationPairLoss", **{**MGD, "s_keys": ["a", "b"]}, **CHANNELS),
            r"DistillationPairLoss.s_keys: expected at most 1 item",
        ),
        (
            of_layers("DistillationDistanceLoss", key="blocks[7]", model_name_pairs=[["Pupil", "Teacher"]]),
            r"there is no model 'Pupil' in Arch.models; expected Teacher, Student",
        ),
        (attending(s_shapes=[[64, 56, 56]]), r"AFDLoss: expected 8 shapes for Student, got 1"),
        (attending(qk_dim=64), r"AFDLoss: qk_dim is 64, and that of Student is 128"),
        (attending(student_keys=["value"]), r"AFDLoss.student_keys"),
        (
            lambda: distilled("ResNet34", "ResNet18", LABELS, attentive()["Loss"]["Train"][-1]),
            r"AFDLoss: Student does not say which of its layers; expected an AttentionModel",
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
def test_what_is_wrong_is_told_by_its_place(tree: Callable[[], Tree], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(tree())


def test_a_model_within_a_model_is_its_backbone_and_what_is_attended_to() -> None:
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


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "AttentionModel", "models": [{"A": {"name": "ResNet18"}}]},
        {"name": "AttentionModel", "models": [{"A": {"name": "ResNet18"}}, {"B": {"name": "ResNet34"}}]},
        {"name": "AttentionModel", "models": ["A", "B"]},
        {"name": "AttentionModel"},
    ],
)
def test_what_is_no_such_model_is_unknown(keys: Tree) -> None:
    tree = attentive()
    tree["Arch"]["models"][1]["Student"] = keys
    with pytest.raises(ConfigError, match=r"Student.name: unknown architecture 'AttentionModel'"):
        load_config(tree)
