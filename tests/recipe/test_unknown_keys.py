"""An unknown key: the error names the place where the key exists, also under the name of another trainer."""

from __future__ import annotations

import re

import pytest
from quickstart import PATH, problems

from ppcls.config.base.errors import ConfigError
from ppcls.config.base.tree import leaves
from ppcls.config.base.yaml import read_yaml
from ppcls.recipe.load import load_config

PLACES = {
    "batch_size": " or ".join(
        ("DataLoader.Train.sampler.batch_size", "DataLoader.Eval.sampler.batch_size", "Infer.batch_size")
    ),
    "lr": "Optimizer.lr.learning_rate",
    "use_amp": "AMP.use_amp",
    "num_classes": "Arch.class_num",
    "num_epochs": "Global.epochs",
    "save_dir": "Global.output_dir",
    "use_gpu": "Global.device: gpu or cpu",
    "model": "Arch.name",
    "data_dir": "DataLoader.Train.dataset.image_root (ppcls train: --data FOLDER)",
}


@pytest.mark.parametrize("section", ["", "Global.", "Trainer."])
@pytest.mark.parametrize("key", list(PLACES))
def test_a_key_at_a_wrong_place_is_explained(key: str, section: str) -> None:
    (problem,) = problems(f"{section}{key}=1")
    if section == "Trainer.":  # the unknown section is reported, not its keys
        assert problem.startswith("Trainer: unknown key; ")
    else:
        assert problem.partition(": ")[2] == f"unknown key; write {PLACES[key]}"


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("Global.inference_model_dir=x", "; remove it; `ppcls infer --model FOLDER IMAGES` predicts with"),
        ("Global.use_wandb=True", "; write Global.loggers, such as -o Global.loggers=[tensorboard]"),
        ("Global.profiler_options=x", "; remove it, and use `ppcls train --profile 10:20`"),
        ("Global.use_xpu=True", "; remove it; only GPUs of NVIDIA and CPUs are supported"),
        ("Global.device=npu:0", "; only GPUs of NVIDIA and CPUs are supported"),
        ("Global.device=[0,1]", "; use gpu; `ppcls launch --gpus=0,1 train FOLDER` starts one process per"),
    ],
)
def test_what_no_key_replaces_is_explained(override: str, advice: str) -> None:
    (problem,) = problems(override)
    assert advice in problem


@pytest.mark.parametrize(
    ("override", "place"),
    [
        (
            "DataLoader.batch_size",
            "DataLoader.Train.sampler.batch_size or DataLoader.Eval.sampler.batch_size",
        ),
        ("DataLoader.Eval.num_workers", "DataLoader.Eval.loader.num_workers"),
        ("DataLoader.Train.image_root", "DataLoader.Train.dataset.image_root"),
        ("Optimizer.warmup_epoch", "Optimizer.lr.warmup_epoch"),
        ("Arch.num_classes", "Arch.class_num"),
        ("Train.batch_size", "DataLoader.Train"),
    ],
)
def test_within_a_section_only_its_parts_are_suggested(override: str, place: str) -> None:
    (problem,) = problems(f"{override}=1")
    assert problem.endswith(f": unknown key; write {place}")


@pytest.mark.parametrize(
    "override", ["Optimizer.epsilon=1", "DataLoader.Train.sampler.seed=1", "AMP.epochs=1"]
)
def test_other_sections_are_not_suggested(override: str) -> None:
    (problem,) = problems(override)
    assert "write" not in problem


def test_every_suggested_key_of_the_config_exists() -> None:
    names = sorted({path.rpartition(".")[2] for path, _ in leaves(read_yaml(PATH))})
    suggested = set()
    for name in names:
        try:
            load_config(PATH, [f"{name}={{}}"])
        except ConfigError as error:
            suggested |= set(re.findall(r"(?:write|or) ([A-Z][\w.]+)", str(error)))
    assert len(suggested) > 20
    for path in suggested:
        with pytest.raises(ConfigError) as caught:
            load_config(PATH, {path: object()})
        assert "unknown key" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("Global.device=cuda", "use gpu; CUDA_VISIBLE_DEVICES"),
        ("Global.device=cuda:1", "use gpu; CUDA_VISIBLE_DEVICES"),
        ("Global.device=0", "use gpu; CUDA_VISIBLE_DEVICES"),
        ("AMP.dtype=fp16", "use float16"),
        ("AMP.dtype=BF16", "use bfloat16"),
        ("AMP.level=O3", "use O2"),
        ("Arch.data_format=channels_last", "use NHWC"),
        ("DataLoader.Eval.dataset.on_error=ignore", "use skip"),
    ],
)
def test_value_of_another_tool_is_explained(setting: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(PATH, [setting])
    (problem,) = caught.value.problems
    assert f"; {advice}" in problem
