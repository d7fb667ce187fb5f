"""Names that older files of PaddleClas have for keys of today."""

from __future__ import annotations

from typing import Any

import pytest

from ppcls.config.compat import config_warnings
from ppcls.config.load import load_config
from ppcls.errors import UserError


def tree(**sections: Any) -> dict[str, Any]:
    rate = {"name": "Constant", "learning_rate": 0.1}
    return {"Arch": {"name": "ResNet18"}, "Optimizer": {"name": "Momentum", "lr": rate}, **sections}


@pytest.mark.parametrize(
    ("sections", "level", "dtype"),
    [
        ({"AMP": {"scale_loss": 128.0, "use_pure_fp16": True}}, "O2", "float16"),
        ({"AMP": {"use_pure_fp16": False}}, "O1", "float16"),
        ({"AMP": {"use_pure_fp16": True, "amp_level": "O2"}}, "O2", "float16"),
        ({"AMP": {"use_pure_fp16": True, "amp_level": "O1"}}, "O1", "float16"),
        ({"AMP_BF16": {"use_pure_bf16": False}}, "O1", "bfloat16"),
        ({"AMP_BF16": {"use_pure_bf16": True}}, "O2", "bfloat16"),
        ({"AMP": {"level": "O2"}}, "O2", "float16"),
    ],
)
def test_they_are_read(sections: dict[str, Any], level: str, dtype: str) -> None:
    amp = load_config(tree(**sections)).AMP
    assert amp is not None
    assert (amp.use_amp, amp.level, amp.dtype) == (True, level, dtype)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"AMP": {"level": "O1", "use_pure_fp16": True}}, "AMP.use_pure_fp16: unknown key; write level: O2"),
        ({"AMP": {"use_pure_fp16": "yes"}}, "AMP.use_pure_fp16: unknown key; write level: O2"),
        ({"AMP": {"amp_level": "O3"}}, "AMP.amp_level: unknown key; did you mean 'level'"),
        ({"AMP": {"level": "O1"}, "AMP_BF16": {}}, "AMP_BF16: unknown key; write AMP with dtype"),
        ({"AMP_BF16": True}, "AMP_BF16: unknown key; write AMP with dtype"),
        ({"Metric": {"Eval": [{"Topk": {"k": [1, 5]}}]}}, "Topk: unknown metric; write TopkAcc, with topk"),
    ],
)
def test_what_is_said_twice_or_wrongly_is_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_config(tree(**sections))


@pytest.mark.parametrize(("scale", "name"), [(1.0, "PPLCNet_x1_0"), (0.25, "PPLCNet_x0_25")])
def test_an_architecture_by_its_scale(scale: float, name: str) -> None:
    given = {"name": "PPLCNet", "scale": scale, "act": "hardswish", "class_num": 7}
    arch = load_config(tree(Arch=given)).Arch
    assert (arch.name, arch.class_num) == (name, 7)
    for other in ({"scale": 3.0}, {"act": "relu"}, {"name": "ResNet18"}):
        with pytest.raises(UserError, match=r"Arch.(name|scale): unknown"):
            load_config(tree(Arch=given | other))


def test_a_number_of_classes_of_the_run_is_that_of_the_model() -> None:
    config = load_config(tree(Global={"class_num": 10}))
    assert config.Arch.class_num == 10
    assert config_warnings(config) == []
    with pytest.raises(UserError, match=r"Arch.class_num: expected an integer > 0 or auto, got -1"):
        load_config(tree(Global={"class_num": -1}))


def test_a_number_of_classes_that_nothing_reads_is_told() -> None:
    config = load_config(tree(Global={"class_num": 10}, Arch={"name": "ResNet18", "class_num": 7}))
    assert config.Arch.class_num == 7
    assert config_warnings(config) == ["warning: Global.class_num has no effect; Arch.class_num is the key"]
