"""Several models in the config: what is right, and what is told of what is wrong."""

from __future__ import annotations

import copy

import pytest
import yaml
from paths import ROOT

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import apply_override, dump_config, read_tree, validate
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.schema import Config

TREE = read_tree(ROOT / "configs/quickstart.yaml")
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


def read(*overrides: str) -> Config:
    """Returns the quickstart with a teacher, as PaddleClas's configs write it, and these overrides."""
    tree = copy.deepcopy(TREE)
    tree |= {"Arch": yaml.safe_load(ARCH), "Loss": yaml.safe_load(LOSS)}
    tree["Metric"] = {split: yaml.safe_load(TOP) for split in ("Train", "Eval")}
    for each in overrides:
        apply_override(tree, each)
    return validate(tree, "tree")


def wrong(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*overrides)
    return list(caught.value.problems)


def test_a_teacher_and_a_student() -> None:
    config = read()
    arch = config.Arch
    assert isinstance(arch, DistillationModel)
    assert (arch.student, arch.frozen, arch.peers) == ("Student", ("Teacher",), ())
    assert arch.exported.name == "ResNet18"
    assert [each.class_num for each in arch.architectures] == [10, 10]
    assert arch.initial_weights("Teacher") == "teacher.pdparams"
    assert arch.initial_weights("Student") is None
    assert validate(yaml.safe_load(dump_config(config)), "dumped") == config


def test_what_holds_for_all_may_stand_anywhere() -> None:
    config = read("Arch.models.0.Teacher.data_format=NHWC", "Arch.data_format=NHWC")
    assert [each.data_format for each in config.Arch.architectures] == ["NHWC", "NHWC"]
    config = read(
        "Arch={name: DistillationModel, freeze_params_list: [True, False], models: [Teacher: {name: "
        "ResNet18, pretrained: t, class_num: 10}, Student: {name: ResNet18, class_num: 10}]}"
    )
    assert config.Arch.class_num == 10
    assert wrong("Arch.models.1.Student.class_num=12") == [
        "Arch.models[1].Student.class_num: expected 10, as Arch.class_num, got 12"
    ]


def test_two_that_learn_from_each_other() -> None:
    losses = "Loss.Train=[DistillationDMLLoss: {model_name_pairs: [[Student, Teacher]]}]"
    arch = read("Arch.freeze_params_list=null", losses).Arch
    assert isinstance(arch, DistillationModel)
    assert (arch.student, arch.frozen, arch.peers) == ("Student", (), ("Teacher",))
    other = (
        read("Arch.freeze_params_list=null", losses, "Arch.infer_model_name=Teacher", "Metric=null or {}")
        if 0
        else None
    )
    assert other is None
    untaught = (
        "Loss.Train: 'Teacher' learns, and no loss teaches it; name it in one as who learns, or freeze it"
    )
    assert wrong("Arch.freeze_params_list=null", "Loss.Train=[CELoss]") == [untaught]


@pytest.mark.parametrize("loss", ["CELoss", "KLDivLoss", "DKDLoss", "WSLLoss", "SKDLoss", "DISTLoss"])
def test_who_is_only_learnt_from_does_not_learn(loss: str) -> None:
    """Several processes would wait for its gradients, and one would leave it random without a word."""
    one = f"Distillation{loss}: {{model_name_pairs: [[Student, Teacher]]}}"
    assert wrong("Arch.freeze_params_list=null", f"Loss.Train=[{one}]") == [
        "Loss.Train: 'Teacher' learns, and no loss teaches it; name it in one as who learns, or freeze it"
    ]
    both = f"{one}, DistillationGTCELoss: {{model_names: [Student, Teacher]}}"
    arch = read("Arch.freeze_params_list=null", f"Loss.Train=[{both}]").Arch
    assert isinstance(arch, DistillationModel)
    assert arch.peers == ("Teacher",)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "Arch.models.0.Teacher.pretrained=3",
            "Arch.models[0].Teacher.pretrained: expected True, False or a file, got 3",
        ),
        (
            "Arch.name=DistilationModel",
            "Arch.name: unknown architecture 'DistilationModel'; did you mean 'Distil",
        ),
        (
            "Arch.freeze_params_list=[True]",
            "Arch.freeze_params_list: expected one for each of 2 models, got 1",
        ),
        ("Arch.pretrained_list=[a, b, c]", "Arch.pretrained_list: expected one for each of 2 models, got 3"),
        (
            "Arch.models.0.Teacher.pretrained=False",
            "Arch.models[0].Teacher: is frozen, and has nothing to teach; give the file of its weights as "
            "`pretrained`",
        ),
        (
            "Arch.freeze_params_list=[False, True]",
            "Arch.infer_model_name: expected a model that learns: Teacher",
        ),
        ("Arch.infer_model_name=Pupil", "Arch.infer_model_name: expected a model that learns: Student"),
        (
            "Arch.models.1.Student.name=ResNet19",
            "Arch.models[1].Student.name: unknown architecture 'ResNet19'",
        ),
        ("Arch.models=[Student: {name: ResNet18}]", "Arch.models: expected at least 2 item(s)"),
        ("Arch.models.1={logits: {name: ResNet18}}", "Arch.models[1].logits: expected a name of letters and"),
        (
            "Arch.models.1={name: ResNet18, drop: 1}",
            "Arch.models[1]: expected one model as 'Name: keys of Arch'",
        ),
        ("Arch.modells=1", "Arch.modells: unknown key; did you mean 'models'?"),
        (
            "Loss.Train.0.DistillationGTCELoss.model_names=[Pupil]",
            "Loss.Train[0].DistillationGTCELoss: there is no model 'Pupil' in Arch.models; expected Teacher,",
        ),
        (
            "Loss.Eval=[DistillationCELoss: {model_name_pairs: [[Student, Teacher]]}]",
            "Loss.Eval[0].DistillationCELoss: evaluation is of 'Student' alone; expected a loss or",
        ),
        (
            "Metric.Eval.0.DistillationTopkAcc.model_key=Teacher",
            "Metric.Eval[0].DistillationTopkAcc: evaluation is of 'Student' alone; expected a loss or metric",
        ),
        (
            "Metric.Train=[TopkAcc, DistillationTopkAcc: {model_key: Student, topk: 5}]",
            "Metric.Train[1].DistillationTopkAcc: top5 is asked for twice",
        ),
    ],
)
def test_what_is_wrong(override: str, problem: str) -> None:
    assert any(each.startswith(problem) for each in wrong(override)), wrong(override)


def test_losses_of_several_models_need_several() -> None:
    text = "is of several models; expected Arch.name: DistillationModel"
    assert wrong("Arch={name: ResNet18, class_num: 10}") == [
        f"Loss.Train[0].DistillationGTCELoss: {text}",
        f"Loss.Train[1].DistillationDKDLoss: {text}",
        f"Metric.Train[0].DistillationTopkAcc: {text}",
        f"Metric.Eval[0].DistillationTopkAcc: {text}",
    ]
