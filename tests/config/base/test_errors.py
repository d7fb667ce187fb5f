"""What a user reads when a config is wrong, word for word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

from ppcls.config.base.errors import ConfigError, place
from ppcls.config.load import apply_override, load_config, validate
from ppcls.errors import UserError

OPS = "DataLoader.Train.dataset.transform_ops"
CHAIN = "[DecodeImage, {ResizeImage: {size: 32}}, NormalizeImage]"
LR = "Optimizer.lr.learning_rate"
SAMPLER = "DataLoader.Train.sampler"

SMALL = """
Global: {epochs: 8, image_shape: [3, 32, 32]}
Arch: {name: ResNet18, class_num: 10}
Loss: {Train: [CELoss: {epsilon: 0.1}]}
Optimizer: {name: Momentum, lr: {name: Cosine, learning_rate: 0.1, warmup_epoch: 1}}
DataLoader:
  Train: &split
    dataset:
      name: ImageNetDataset
      image_root: images
      cls_label_path: list.txt
      transform_ops:
        - DecodeImage:
        - RandCropImage: {size: 32}
        - NormalizeImage:
    sampler: {batch_size: 4}
  Eval: *split
Infer: {transforms: [DecodeImage, ResizeImage: {size: 32}, NormalizeImage]}
Metric: {Eval: [TopkAcc: {topk: [1, 5]}]}
"""


def problems(*overrides: str) -> list[str]:
    tree: dict[str, Any] = yaml.safe_load(SMALL.replace("&split", "").replace("Eval: *split", ""))
    for override in overrides:
        apply_override(tree, override)
    with pytest.raises(ConfigError) as caught:
        validate(tree, "small.yaml")
    first, *rest = str(caught.value).splitlines()
    assert first == "small.yaml"
    assert rest == [f"  {each}" for each in caught.value.problems]
    return list(caught.value.problems)


def test_the_config_of_these_tests_is_right() -> None:
    assert validate(yaml.safe_load(SMALL), "small.yaml").Arch.class_num == 10


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("Global.use_dalli=True", "Global.use_dalli: unknown key; did you mean 'use_dali'?"),
        ("AMP_BF16.level=O1", "AMP_BF16: unknown key; write AMP with dtype: bfloat16"),
        ("AMP.use_pure_fp16=True", "AMP.use_pure_fp16: unknown key; write level: O2"),
        ("AMP.init_loss_scaling=8", "AMP.init_loss_scaling: unknown key; scale_loss is the first scale"),
        ("AMP.min_loss_scale=8", "AMP.min_loss_scale: unknown key; did you mean 'min_loss_scaling'?"),
        ("AMP.min_loss_scaling=0.5", "AMP.min_loss_scaling: expected a number >= 1, got 0.5"),
        ("AMP.level=O3", "AMP.level: expected 'O1' or 'O2', got 'O3'"),
        ("AMP.dtype=fp16", "AMP.dtype: expected 'float16' or 'bfloat16', got 'fp16'"),
        (
            "Global.image_channel=4",
            "Global.image_channel: expected Arch.input_image_channel (3), got 4; remove it",
        ),
        ("Global.max_bad_steps=-1", "Global.max_bad_steps: expected an integer >= 0, got -1"),
        ("Globl.seed=1", "Globl: unknown key; did you mean 'Global'?"),
        (
            "Zzz=1",
            "Zzz: unknown key; known: AMP, Arch, DataLoader, EMA, Global, Infer, Loss, Metric, Optimizer",
        ),
        ("1=2", "1: unknown key; known: AMP, Arch, DataLoader, EMA, Global, Infer, Loss, Metric, Optimizer"),
        (
            "DataLoader.Train.sampler.batch_size=abc",
            "DataLoader.Train.sampler.batch_size: expected an integer > 0, got 'abc'",
        ),
        ("Global.epochs=0", "Global.epochs: expected an integer > 0, got 0"),
        ("Global.epochs=True", "Global.epochs: expected an integer > 0, got True"),
        ("Global.epochs=2.0", "Global.epochs: expected an integer > 0, got 2.0"),
        ("Global.epochs=1e3", "Global.epochs: expected an integer > 0, got 1000.0"),
        ("Global.epochs=", "Global.epochs: expected an integer > 0, got None"),
        ("Global.seed=-1", "Global.seed: expected an integer >= 0 and < 4294967296, got -1"),
        ("Global.seed=4294967296", "Global.seed: expected an integer >= 0 and < 4294967296, got 4294967296"),
        ("Global.use_dali=2", "Global.use_dali: expected True or False, got 2"),
        ("Global.use_dali=maybe", "Global.use_dali: expected True or False, got 'maybe'"),
        ("Global.output_dir=5", "Global.output_dir: expected text, got 5"),
        ("Global.device=tpu", "Global.device: expected 'auto', 'gpu' or 'cpu', got 'tpu'"),
        ("Global.to_static=yes!", "Global.to_static: expected 'auto', True or False, got 'yes!'"),
        ("Global.image_shape=7", "Global.image_shape: expected a list, got 7"),
        ("Global.image_shape=[3, 32]", "Global.image_shape[2]: missing; it has no default"),
        (
            "Global.image_shape=[3, 32, 32, 1]",
            "Global.image_shape: expected at most 3 item(s), got [3, 32, 32, 1]",
        ),
        ("Global=5", "Global: expected a mapping, got 5"),
        (
            "Arch.name=x",
            "Arch.name: unknown architecture 'x'; `python tools/models.py list` prints all",
        ),
        ("Arch.name=ResNet5", "Arch.name: unknown architecture 'ResNet5'; did you mean 'ResNet50'?"),
        ("EMA.decay=1", "EMA.decay: expected a number >= 0 and < 1, got 1"),
        (f"{LR}=0", f"{LR}: expected a number > 0, got 0"),
        (f"{LR}=.nan", f"{LR}: expected a number > 0, got nan"),
        (f"{LR}=.inf", f"{LR}: expected a number > 0, got inf"),
        (f"{LR}=1{'0' * 400}", f"{LR}: expected a number > 0, got 1{'0' * 47}...{'0' * 49}"),
        (f"{LR}=1.0/0", f"{LR}: expected a number > 0, got '1.0/0'"),
        (f"{LR}=1/2/3", f"{LR}: expected a number > 0, got '1/2/3'"),
        (
            f"{LR}=__import__('os').system('x')",
            f"{LR}: expected a number > 0, got \"__import__('os').system('x')\"",
        ),
        (
            "Optimizer.name=Momentun",
            "Optimizer.name: unknown optimizer 'Momentun'; did you mean 'Momentum'?",
        ),
        ("Optimizer.name=[1]", "Optimizer: expected the name of the optimizer, got [1]"),
        (
            "Optimizer=5",
            "Optimizer: expected a mapping with the key 'name', that of the optimizer, got 5",
        ),
        (
            "Optimizer.lr.name=Cosin",
            "Optimizer.lr.name: unknown learning-rate schedule 'Cosin'; did you mean 'Cosine'?",
        ),
        ("Optimizer.clip_gard=1", "Optimizer.clip_gard: unknown key; did you mean 'clip_norm'?"),
        (
            "DataLoader.Train.dataset.name=ImageNet",
            "DataLoader.Train.dataset.name: unknown dataset 'ImageNet'; did you mean 'ImageNetDataset'?",
        ),
        (
            "DataLoader.Train.dataset.delimiter=''",
            "DataLoader.Train.dataset.delimiter: expected at least 1 character(s), got ''",
        ),
        (
            "DataLoader.Train.dataset=null",
            "DataLoader.Train.dataset: expected a mapping with the key 'name', that of the dataset, got None",
        ),
        (
            f"{SAMPLER}.name=ClassBalanceSampler",
            f"{SAMPLER}.name: unknown sampler 'ClassBalanceSampler'; did you mean 'ClassBalancedSampler'?",
        ),
        (f"{SAMPLER}=5", f"{SAMPLER}: expected a mapping with the key 'name', that of the sampler, got 5"),
        (f"{SAMPLER}.shufle=True", f"{SAMPLER}.shufle: unknown key; did you mean 'shuffle'?"),
        (
            f"{SAMPLER}={{name: PKSampler, batch_size: 6, sample_per_id: 4}}",
            f"{SAMPLER}.batch_size: expected a multiple of sample_per_id (4), got 6",
        ),
        (
            f"{SAMPLER}={{name: PKSampler, global_batch_size: 6, sample_per_id: 4}}",
            f"{SAMPLER}.global_batch_size: expected a multiple of sample_per_id (4), got 6",
        ),
        (
            f"{SAMPLER}.batch_size=null",
            f"{SAMPLER}.batch_size: missing; expected this, or global_batch_size",
        ),
        (
            f"{SAMPLER}.global_batch_size=8",
            f"{SAMPLER}.global_batch_size: expected this (over all processes) or batch_size (of each), "
            "got both; set one to null",
        ),
        (
            f"{SAMPLER}={{name: PKSampler, batch_size: 4}}",
            f"{SAMPLER}.sample_per_id: missing; it has no default",
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
        (
            f"{SAMPLER}={{name: WeightedSampler, batch_size: 4, class_weights: [1, -2]}}",
            f"{SAMPLER}.class_weights[1]: expected a number >= 0, got -2",
        ),
        (
            f"{SAMPLER}={{name: WeightedSampler, batch_size: 4, class_weights: [1, 2]}}",
            f"{SAMPLER}.class_weights: expected one weight for each of Arch.class_num (10) classes, got 2",
        ),
        (
            "DataLoader.Eval={sampler: {name: ClassBalancedSampler, batch_size: 4}, dataset: {name: "
            "ImageFolderDataset, image_root: images, "
            "transform_ops: [DecodeImage, ResizeImage: {size: 8}, NormalizeImage]}}",
            "DataLoader.Eval.sampler.name: evaluation takes each sample once, in order; "
            "expected DistributedBatchSampler, got ClassBalancedSampler",
        ),
        (
            f"DataLoader.Train.dataset={{name: WebDataset, paths: a.tar, transform_ops: {CHAIN}}}",
            "DataLoader.Train.dataset.paths: expected a list, got 'a.tar'",
        ),
        (
            f"DataLoader.Train.dataset={{name: LMDBDataset, paths: [], transform_ops: {CHAIN}}}",
            "DataLoader.Train.dataset.paths: expected at least 1 item(s), got []",
        ),
        ("Loss.Train=[]", "Loss.Train: expected at least 1 item(s), got []"),
        ("Loss.Train.0.CELoss=5", "Loss.Train[0].CELoss: expected a mapping of its parameters, got 5"),
        (
            "Loss.Train.0.CELoss.epsilon=2",
            "Loss.Train[0].CELoss.epsilon: expected a number >= 0 and < 1, got 2",
        ),
        ("Metric.Eval=TopkAcc", "Metric.Eval: expected a list, got 'TopkAcc'"),
        (f"{OPS}=5", f"{OPS}: expected a list, got 5"),
        (
            f"{OPS}.1={{CropImag: {{size: 2}}}}",
            f"{OPS}[1].CropImag: unknown transform; did you mean 'CropImage'?",
        ),
        (f"{OPS}.1=CropImag", f"{OPS}[1].CropImag: unknown transform; did you mean 'CropImage'?"),
        (f"{OPS}.0=null", f"{OPS}[0]: expected one transform as 'Name: parameters', got None"),
        (
            f"{OPS}.0={{a: 1, b: 2}}",
            f"{OPS}[0]: expected one transform as 'Name: parameters', got {{'a': 1, 'b': 2}}",
        ),
        (f"{OPS}.0={{1: 2}}", f"{OPS}[0]: expected the name of the transform, got 1"),
        (f"{OPS}.1.RandCropImage=7", f"{OPS}[1].RandCropImage: expected a mapping of its parameters, got 7"),
        (f"{OPS}.1.RandCropImage={{}}", f"{OPS}[1].RandCropImage.size: missing; it has no default"),
        (f"{OPS}.1.RandCropImage.sze=3", f"{OPS}[1].RandCropImage.sze: unknown key; did you mean 'size'?"),
        (
            f"{OPS}.1.RandCropImage.size=-1",
            f"{OPS}[1].RandCropImage.size: expected an integer > 0, or [width, height], got -1",
        ),
        (
            f"{OPS}.1.RandCropImage.size=[1, 2, 3]",
            f"{OPS}[1].RandCropImage.size: expected an integer > 0, or [width, height], got [1, 2, 3]",
        ),
        (
            f"{OPS}.1.RandCropImage.scale=[0.5, 0.1]",
            f"{OPS}[1].RandCropImage: expected scale as [min, max], got [0.5, 0.1]",
        ),
        (
            f"{OPS}.1.RandCropImage.scale=[0.5, 2]",
            f"{OPS}[1].RandCropImage.scale[1]: expected a number >= 0 and <= 1, got 2",
        ),
        (f"{OPS}.1={{ResizeImage: {{}}}}", f"{OPS}[1].ResizeImage: expected either size or resize_short"),
        (
            f"{OPS}.1={{ResizeImage: {{size: 8, interpolation: bicubic}}}}",
            f"{OPS}[1].ResizeImage: cv2's bicubic sampling is its own; use backend: pil, or bilinear",
        ),
        (
            f"{OPS}.0=NormalizeImage",
            f"{OPS}[0].NormalizeImage: the image is not decoded yet; put DecodeImage before it",
        ),
        (
            f"{OPS}.1={{CropImage: {{size: 4}}}}",
            f"{OPS}[1].CropImage: a 4x4 crop doesn't fit images of any size; resize before it",
        ),
        (f"{OPS}=[]", f"{OPS}: no transform decodes the image; begin with DecodeImage or DecodeNumpy"),
        (
            f"{OPS}.2={{NormalizeImage: {{mean: [1]}}}}",
            f"{OPS}[2].NormalizeImage: expected as many std as mean, got 3 and 1",
        ),
        (
            f"{OPS}.2={{NormalizeImage: {{order: chw}}}}",
            f"{OPS}[2].NormalizeImage: order is 'chw', but the image is HWC; set order: ''",
        ),
    ],
)
def test_one_wrong_value(override: str, text: str) -> None:
    assert problems(override) == [text]


def test_all_errors_are_told_at_once() -> None:
    assert problems(
        "Global.use_dalli=True",
        "Global.epochs=many",
        "Arch.nam=ResNet50",
        "DataLoader.Train.sampler.batch_size=0",
        f"{OPS}.2={{CropImag: {{size: 2}}}}",
        "Optimizer.lr.name=Cosin",
    ) == [
        "Global.use_dalli: unknown key; did you mean 'use_dali'?",
        "Global.epochs: expected an integer > 0, got 'many'",
        "Arch.nam: unknown key; did you mean 'name'?",
        "Optimizer.lr.name: unknown learning-rate schedule 'Cosin'; did you mean 'Cosine'?",
        f"{OPS}[2].CropImag: unknown transform; did you mean 'CropImage'?",
        "DataLoader.Train.sampler.batch_size: expected an integer > 0, got 0",
    ]


def test_the_file_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(SMALL)
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["DataLoader.Eval.dataset.transform_ops[1]={CropImag: {size: 3}}"])
    assert str(caught.value).splitlines()[0] == str(path)
    assert (
        "  DataLoader.Eval.dataset.transform_ops[1].CropImag: unknown transform; did you mean 'CropImage'?"
        in str(caught.value)
    )


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
def test_place(tree: Any, loc: tuple[int | str, ...], text: str) -> None:
    assert place(tree, loc) == text


def test_a_long_value_is_shortened() -> None:
    (text,) = problems(f"Global.epochs={'x' * 5000}")
    assert text.startswith("Global.epochs: expected an integer > 0, got 'xxx")
    assert len(text) < 200


def test_braces_in_a_value_are_only_text() -> None:
    assert problems("Global.epochs='{what} {got} {text}'") == [
        "Global.epochs: expected an integer > 0, got '{what} {got} {text}'"
    ]


def run_tool(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_an_error_shows_before_paddle_is_imported(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv[0] = {str(ROOT / 'tools/train.py')!r}\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        "    print(sorted({'paddle', 'nvidia.dali', 'cv2'} & set(sys.modules)))\n"
    )
    config = ROOT / "configs/quickstart.yaml"
    done = run_tool(code, "-c", str(config), "-o", "Global.usedali=1", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "[]\n"
    assert done.stderr == f"error: {config}\n  Global.usedali: unknown key; did you mean 'use_dali'?\n"
    assert list(tmp_path.iterdir()) == []


def test_a_config_error_is_for_the_user() -> None:
    assert issubclass(ConfigError, UserError)
