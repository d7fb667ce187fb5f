"""Error messages of a wrong config: the source of the value, its key, what is wrong and how to fix it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from quickstart import PATH, problems

from ppcls.config.base.errors import ConfigError, place
from ppcls.recipe.load import load_config

OPS = "DataLoader.Train.dataset.transform_ops"
LR = "Optimizer.lr.learning_rate"
SAMPLER = "DataLoader.Train.sampler"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # Unknown keys
        ("Global.use_dalli=True", "Global.use_dalli: unknown key; did you mean 'use_dali'?"),
        ("Globl.seed=1", "Globl: unknown key; did you mean 'Global'?"),
        (
            "AMP.init_loss_scaling=8",
            "AMP.init_loss_scaling: unknown key; write scale_loss, the initial scale",
        ),
        ("AMP_BF16.level=O1", "AMP_BF16: unknown key; write AMP with dtype: bfloat16"),
        (
            "1=2",
            "1: unknown key; known: AMP, Arch, DataLoader, EMA, Global, Infer, LinearHead, Loss, Metric, "
            "Optimizer, SSL",
        ),
        # Numbers
        ("Global.epochs=many", "Global.epochs: expected an integer > 0, got 'many'"),
        ("Global.epochs=0", "Global.epochs: expected an integer > 0, got 0"),
        ("Global.epochs=True", "Global.epochs: expected an integer > 0, got True"),
        ("Global.epochs=2.0", "Global.epochs: expected an integer > 0, got 2.0"),
        ("Global.epochs=", "Global.epochs: expected an integer > 0, got None"),
        ("Global.epochs='{what} {got}'", "Global.epochs: expected an integer > 0, got '{what} {got}'"),
        ("Global.max_bad_steps=-1", "Global.max_bad_steps: expected an integer >= 0, got -1"),
        ("Global.seed=4294967296", "Global.seed: expected an integer >= 0 and < 4294967296, got 4294967296"),
        ("EMA.decay=1", "EMA.decay: expected a number >= 0 and < 1, got 1"),
        ("AMP.min_loss_scaling=0.5", "AMP.min_loss_scaling: expected a number >= 1, got 0.5"),
        (f"{LR}=.nan", f"{LR}: expected a number > 0, got nan"),
        (f"{LR}=.inf", f"{LR}: expected a number > 0, got inf"),
        (f"{LR}=1{'0' * 400}", f"{LR}: expected a number > 0, got 1{'0' * 47}...{'0' * 49}"),
        (f"{LR}=1.0/0", f"{LR}: expected a number > 0, got '1.0/0'"),
        (f"{LR}=1/2/3", f"{LR}: expected a number > 0, got '1/2/3'"),
        # Other types
        ("Global.use_dali=2", "Global.use_dali: expected True or False, got 2"),
        ("Global.use_dali=maybe", "Global.use_dali: expected True or False, got 'maybe'"),
        ("Global.output_dir=5", "Global.output_dir: expected text, got 5"),
        ("Global.output_dir=' '", "Global.output_dir: expected a folder such as ./output, got ' '"),
        ("Global.device=tpu", "Global.device: expected 'auto', 'gpu' or 'cpu', got 'tpu'"),
        ("Global.image_shape=7", "Global.image_shape: expected a list, got 7"),
        ("Global.image_shape=[3, 32]", "Global.image_shape[2]: missing; it has no default"),
        (
            "Global.image_shape=[3, 2, 2, 1]",
            "Global.image_shape: expected at most 3 item(s), got [3, 2, 2, 1]",
        ),
        ("Global=5", "Global: expected a mapping, got 5"),
        ("Loss.Train=[]", "Loss.Train: expected at least 1 item(s), got []"),
        (
            "DataLoader.Train.dataset.delimiter=''",
            "DataLoader.Train.dataset.delimiter: expected at least 1 character(s), got ''",
        ),
        # Components chosen by name
        ("Arch.name=ResNet5", "Arch.name: unknown architecture 'ResNet5'; did you mean 'ResNet50' or "),
        (
            "Arch.name=MobileNetV3",
            "Arch.name: unknown architecture 'MobileNetV3'; did you mean 'MobileNetV3_",
        ),
        (
            "Arch.name=resnet50.a1_in1k",
            "Arch.name: unknown architecture 'resnet50.a1_in1k'; name an architecture, and set "
            "--pretrained hf-hub:timm/resnet50.a1_in1k (Arch.pretrained); "
            "did you mean 'ResNet50'?",
        ),
        ("Arch.name=x", "Arch.name: unknown architecture 'x'; `ppcls models list` lists all"),
        ("Optimizer=5", "Optimizer: expected a mapping with the key 'name' of the optimizer, got 5"),
        ("Optimizer.name=[1]", "Optimizer: expected the name of the optimizer, got [1]"),
        ("Optimizer.name=Momentun", "Optimizer.name: unknown optimizer 'Momentun'; did you mean 'Momentum'?"),
        (f"{OPS}=5", f"{OPS}: expected a list, got 5"),
        (
            f"{OPS}.1={{CropImag: {{size: 2}}}}",
            f"{OPS}[1].CropImag: unknown transform; did you mean 'CropImage'?",
        ),
        (f"{OPS}.1=CropImag", f"{OPS}[1].CropImag: unknown transform; did you mean 'CropImage'?"),
        (f"{OPS}.0=null", f"{OPS}[0]: expected one transform as 'Name: parameters', got None"),
        (f"{OPS}.0={{a: 1, b: 2}}", f"{OPS}[0]: expected one transform as 'Name: parameters', got {{'a'"),
        (f"{OPS}.0={{1: 2}}", f"{OPS}[0]: expected the name of the transform, got 1"),
        (f"{OPS}.1.RandCropImage=7", f"{OPS}[1].RandCropImage: expected a mapping of its parameters, got 7"),
        (f"{OPS}.1.RandCropImage={{}}", f"{OPS}[1].RandCropImage.size: missing; it has no default"),
        (f"{OPS}.1.RandCropImage.sze=3", f"{OPS}[1].RandCropImage.sze: unknown key; did you mean 'size'?"),
        (
            "Loss.Train.0.CELoss.epsilon=2",
            "Loss.Train[0].CELoss.epsilon: expected a number >= 0 and < 1, got 2",
        ),
        # Chains of transforms
        (f"{OPS}.1.RandCropImage.size=-1", f"{OPS}[1].RandCropImage.size: expected an integer > 0"),
        (f"{OPS}.1.RandCropImage.scale=[0.5, 0.1]", f"{OPS}[1].RandCropImage: expected scale as [min, max]"),
        (f"{OPS}.1.RandCropImage.scale=[0.5, 2]", f"{OPS}[1].RandCropImage.scale[1]: expected a number >= 0"),
        (
            f"{OPS}.1={{ResizeImage: {{}}}}",
            f"{OPS}[1].ResizeImage: expected either size or resize_short, got both or neither",
        ),
        (
            f"{OPS}.0=NormalizeImage",
            f"{OPS}[0].NormalizeImage: expected a decoded image; put DecodeImage",
        ),
        (f"{OPS}=[]", f"{OPS}: no transform decodes the image; start with DecodeImage or DecodeNumpy"),
        ("Infer.transforms.1=RandFlipImage", "Infer.transforms"),
        # Samplers
        (f"{SAMPLER}.batch_size=null", f"{SAMPLER}.batch_size: missing; set batch_size or global_batch_size"),
        (
            f"{SAMPLER}.global_batch_size=8",
            f"{SAMPLER}.global_batch_size: expected batch_size or global_batch_size",
        ),
        (
            f"{SAMPLER}={{name: PKSampler, global_batch_size: 6, sample_per_id: 4}}",
            f"{SAMPLER}.global_batch_size: expected a multiple of sample_per_id (4), got 6",
        ),
        (
            f"{SAMPLER}={{name: RepeatedAugSampler, batch_size: 4, shuffle: False}}",
            f"{SAMPLER}.shuffle: expected True, got False",
        ),
        (
            f"{SAMPLER}={{name: WeightedSampler, batch_size: 4}}",
            f"{SAMPLER}: expected either class_weights or weights_file",
        ),
        (
            f"{SAMPLER}={{name: WeightedSampler, batch_size: 4, class_weights: [1], weights_file: w.txt}}",
            f"{SAMPLER}: expected either class_weights or weights_file",
        ),
        (
            f"{SAMPLER}={{name: WeightedSampler, batch_size: 4, class_weights: [0, 0]}}",
            f"{SAMPLER}.class_weights: expected at least one weight > 0",
        ),
    ],
)
def test_problem_one_wrong_value_names_key_expected_and_found(override: str, message: str) -> None:
    (problem,) = problems(override)
    assert problem.startswith(message)


def test_problem_long_value_is_shortened() -> None:
    (problem,) = problems(f"Global.epochs={'x' * 5000}")
    assert problem.startswith("Global.epochs: expected an integer > 0, got 'xxx")
    assert len(problem) < 200


def test_problem_many_known_keys_names_the_document_that_lists_them() -> None:
    assert problems("Global.zzz=1") == ["Global.zzz: unknown key; docs/config.md lists all keys"]


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("use_dali=True", "use_dali: unknown key; write Global.use_dali"),
        ("ARCHITECTURE.name=ResNet50", "ARCHITECTURE: unknown key; write Arch"),
        ("TRAIN.batch_size=8", "TRAIN: unknown key; write DataLoader.Train"),
    ],
)
def test_problem_key_outside_its_section_names_its_path(override: str, hint: str) -> None:
    assert problems(override) == [hint]


def test_error_lists_all_problems() -> None:
    found = problems(
        "Global.use_dalli=True", "Global.epochs=many", "Arch.nam=ResNet50", f"{SAMPLER}.batch_size=0"
    )
    assert [each.partition(":")[0] for each in found] == [
        "Global.use_dalli",
        "Global.epochs",
        "Arch.nam",
        f"{SAMPLER}.batch_size",
    ]


def test_error_groups_problems_by_file_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(PATH.read_text().replace("  epochs: 8", "  epochs: none"))
    overrides = ["Global.sed=1", f"{SAMPLER}.batch_size=abc", "Optimizer.lr.warmup_epoch=-1"]
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    assert str(caught.value).splitlines() == [
        "-o Global.sed=1",
        "  Global.sed: unknown key; did you mean 'seed'?",
        str(file),
        "  Global.epochs: expected an integer > 0, got 'none'",
        "-o Optimizer.lr.warmup_epoch=-1",
        "  Optimizer.lr.warmup_epoch: expected a number >= 0, got -1",
        f"-o {SAMPLER}.batch_size=abc",
        f"  {SAMPLER}.batch_size: expected an integer > 0 and <= 1000000, got 'abc'",
    ]
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("sampler", ["{batch_size: 0}", "{name: NoSampler}", "{}", "3"])
def test_error_in_training_data_reports_no_key_of_evaluation_data(sampler: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(PATH, ["DataLoader.Eval.sampler={}", f"DataLoader.Train.sampler={sampler}"])
    assert all(problem.startswith("DataLoader.Train.sampler") for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("overrides", "source"),
    [
        (["Global.epochs=0"], "-o Global.epochs=0"),
        (["Global={epochs: 0}"], "-o Global={epochs: 0}"),
        (["Global.epochs=1", "Global.epochs=0"], "-o Global.epochs=0"),
        ({"Global.epochs": 0}, "override Global.epochs"),
        ([f"{OPS}.1.RandCropImage.scale=5"], f"-o {OPS}.1.RandCropImage.scale=5"),
        ([f"{OPS}[1]=Crop"], f"-o {OPS}[1]=Crop"),
        (["Optimizer.lr.warmup_start_lr=8"], f"{PATH} with -o Optimizer.lr.warmup_start_lr=8"),
        ([f"Global.epochs={'9' * 200}x"], f"-o Global.epochs={'9' * 83}…"),
    ],
)
def test_error_source_is_the_override_of_the_value(overrides: Any, source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(PATH, overrides)
    assert str(caught.value).splitlines()[0] == source


@pytest.mark.parametrize(
    ("tree", "loc", "text"),
    [
        ({}, (), ""),
        ({"a": {"b": 1}}, ("a", "b"), "a.b"),
        ({"a": [{"Crop": {"size": 1}}]}, ("a", 0, "size"), "a[0].Crop.size"),
        ({"a": [{"Crop": {"size": 1}}]}, ("a", 0, "Crop"), "a[0].Crop"),
        ({"a": [{"Crop": None}]}, ("a", 0), "a[0].Crop"),
        ({"a": [{"Crop": None}]}, ("a", 0, "size"), "a[0].Crop.size"),
        ({"a": ["Crop"]}, ("a", 0, "size"), "a[0].size"),
        ({"a": [{"Crop": {"scale": [1, 2]}}]}, ("a", 0, "scale", 1), "a[0].Crop.scale[1]"),
        ({"a": 5}, ("a", "b", 3), "a.b[3]"),
        ({"a": []}, ("a", 7), "a[7]"),
    ],
)
def test_path_includes_names_of_list_items(tree: Any, loc: tuple[int | str, ...], text: str) -> None:
    assert place(tree, loc) == text


def test_train_reports_config_errors_before_importing_paddle(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv[0] = {str(ROOT / 'tools/train.py')!r}\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        "    print(sorted({'paddle', 'nvidia.dali', 'cv2'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, "-c", str(PATH), "-o", "Global.usedali=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "[]\n"
    assert "-o Global.usedali=1\n  Global.usedali: unknown key; did you mean 'use_dali'?\n" in done.stderr
    assert list(tmp_path.iterdir()) == []
