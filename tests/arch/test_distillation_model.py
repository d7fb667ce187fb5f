"""Distillation between several models."""

from __future__ import annotations

import pytest
import quickstart
import yaml
from quickstart import TREE as QUICKSTART

from ppcls.arch.distillation_model import DistillationModel

ARCH = """
name: DistillationModel
class_num: 10
pretrained_list:
freeze_params_list: [True, False]
models:
  - Teacher: {name: ResNet34, pretrained: teacher.pdparams}
  - Student: {name: ResNet18, pretrained: False}
infer_model_name: Student
"""
LOSS = """
Train:
  - DistillationGTCELoss: {weight: 1.0, model_names: [Student]}
  - DistillationDKDLoss: {weight: 1.0, model_name_pairs: [[Student, Teacher]], temperature: 1}
Eval:
  - CELoss: {weight: 1.0}
"""
TOP = "[DistillationTopkAcc: {model_key: Student, topk: [1, 5]}]"


TREE = {
    **QUICKSTART,
    "Arch": yaml.safe_load(ARCH),
    "Loss": yaml.safe_load(LOSS),
    "Metric": {split: yaml.safe_load(TOP) for split in ("Train", "Eval")},
}


def read_arch(*overrides: str) -> DistillationModel:
    arch = quickstart.read(*overrides, tree=TREE).Arch
    assert isinstance(arch, DistillationModel)
    return arch


def problems(*overrides: str) -> list[str]:
    return quickstart.problems(*overrides, tree=TREE)


def test_distillation_teacher_is_frozen_and_student_exported() -> None:
    assert problems() == []
    arch = read_arch()
    assert (arch.student, arch.frozen, arch.peers) == ("Student", ("Teacher",), ())
    assert arch.exported.name == "ResNet18"
    assert [each.class_num for each in arch.architectures] == [10, 10]
    assert arch.initial_weights("Teacher") == "teacher.pdparams"
    assert arch.initial_weights("Student") is None
    assert arch.describe() == (
        "Teacher: ResNet34, frozen, teacher.pdparams; Student: ResNet18, trained, evaluated and saved"
    )


def test_distillation_shared_keys_may_be_set_anywhere() -> None:
    arch = read_arch("Arch.models.0.Teacher.data_format=NHWC", "Arch.data_format=NHWC")
    assert [each.data_format for each in arch.architectures] == ["NHWC", "NHWC"]
    arch = read_arch(
        "Arch={name: DistillationModel, freeze_params_list: [True, False], models: [Teacher: {name: "
        "ResNet18, pretrained: t, class_num: 10}, Student: {name: ResNet18, class_num: 10}]}"
    )
    assert arch.class_num == 10


def test_distillation_mutual_learning_has_peers() -> None:
    losses = "Loss.Train=[DistillationDMLLoss: {model_name_pairs: [[Student, Teacher]]}]"
    arch = read_arch("Arch.freeze_params_list=null", losses)
    assert (arch.student, arch.frozen, arch.peers) == ("Student", (), ("Teacher",))


@pytest.mark.parametrize("loss", ["CELoss", "KLDivLoss", "DKDLoss", "WSLLoss", "SKDLoss", "DISTLoss"])
def test_distillation_trainable_teacher_needs_a_gradient(loss: str) -> None:
    one = f"Distillation{loss}: {{model_name_pairs: [[Student, Teacher]]}}"
    (problem,) = problems("Arch.freeze_params_list=null", f"Loss.Train=[{one}]")
    assert problem.startswith("Loss.Train: 'Teacher' is trainable but receives no gradient")
    both = f"{one}, DistillationGTCELoss: {{model_names: [Student, Teacher]}}"
    assert read_arch("Arch.freeze_params_list=null", f"Loss.Train=[{both}]").peers == ("Teacher",)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "Arch.models.0.Teacher.pretrained=3",
            "Arch.models[0].Teacher.pretrained: expected True, False, 'auto', a file, or a name",
        ),
        (
            "Arch.name=DistilationModel",
            "Arch.name: unknown architecture 'DistilationModel'; did you mean 'Distil",
        ),
        (
            "Arch.freeze_params_list=[True]",
            "Arch.freeze_params_list: expected 2 items, one for each of Arch.models, got 1",
        ),
        (
            "Arch.pretrained_list=[a, b, c]",
            "Arch.pretrained_list: expected 2 items, one for each of Arch.models, got 3",
        ),
        (
            "Arch.models.0.Teacher.pretrained=False",
            "Arch.models[0].Teacher: is frozen, but has no trained weights; set `pretrained` to a file",
        ),
        (
            "Arch.freeze_params_list=[False, True]",
            "Arch.infer_model_name: expected a trainable model: Teacher",
        ),
        ("Arch.infer_model_name=Pupil", "Arch.infer_model_name: expected a trainable model: Student"),
        (
            "Arch.models.1.Student.name=ResNet19",
            "Arch.models[1].Student.name: unknown architecture 'ResNet19'",
        ),
        ("Arch.models=[Student: {name: ResNet18}]", "Arch.models: expected at least 2 item(s)"),
        (
            "Arch.models.1={logits: {name: ResNet18}}",
            "Arch.models[1].logits: expected a name of letters, digits",
        ),
        (
            "Arch.models.1={name: ResNet18, drop: 1}",
            "Arch.models[1]: expected one model as 'Name: keys of Arch'",
        ),
        (
            "Arch.models.1.Student.class_num=12",
            "Arch.models[1].Student.class_num: expected 10, the value of Arch.class_num, got 12",
        ),
        ("Arch.freeze_params_list=[True, True]", "Arch.freeze_params_list: expected a trainable model"),
        ("Arch.modells=1", "Arch.modells: unknown key; did you mean 'models'?"),
        (
            "Loss.Train.0.DistillationGTCELoss.model_names=[Pupil]",
            "Loss.Train[0].DistillationGTCELoss: Arch.models has no model 'Pupil'; expected Teacher,",
        ),
        (
            "Loss.Eval=[DistillationCELoss: {model_name_pairs: [[Student, Teacher]]}]",
            "Loss.Eval[0].DistillationCELoss: only 'Student' is evaluated",
        ),
        (
            "Metric.Eval.0.DistillationTopkAcc.model_key=Teacher",
            "Metric.Eval[0].DistillationTopkAcc: only 'Student' is evaluated",
        ),
        (
            "Metric.Train=[TopkAcc, DistillationTopkAcc: {model_key: Student, topk: 5}]",
            "Metric.Train[1].DistillationTopkAcc: top5 is reported twice",
        ),
    ],
)
def test_distillation_error_names_key_and_fix(override: str, problem: str) -> None:
    found = problems(override)
    assert any(each.startswith(problem) for each in found), found


def test_distillation_losses_need_several_models() -> None:
    text = "needs several models; expected Arch.name: DistillationModel"
    assert problems("Arch={name: ResNet18, class_num: 10}") == [
        f"Loss.Train[0].DistillationGTCELoss: {text}",
        f"Loss.Train[1].DistillationDKDLoss: {text}",
        f"Metric.Train[0].DistillationTopkAcc: {text}",
        f"Metric.Eval[0].DistillationTopkAcc: {text}",
    ]
