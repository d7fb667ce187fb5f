"""Comparison of the accuracy of ppcls and PyTorch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.command import AccuracyCurve, describe, measure_accuracy
from benchmarks.accuracy.job import describe_run, write_weights
from benchmarks.accuracy.resize import resize
from ppcls.data.transforms.numpy_ops import apply
from ppcls.data.transforms.specs import ResizeImage
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config

CONFIGS = Path(__file__).parents[3] / "configs"
NAMES = ("wrn", "wrn28", "resnet18", "fast", "vit", "convnext")


def load(folder: Path, name: str, *changes: str, shape: Sequence[int] = (28, 28)) -> Config:
    """Returns a config of Fashion-MNIST with ten images per split, which it writes to ``folder``."""
    return load_config(CONFIGS / f"fashion_mnist_{name}.yaml", [*small(folder, shape), *changes])


def small(folder: Path, image_shape: Sequence[int] = (28, 28)) -> list[str]:
    """Writes ten images per split to ``folder``, and returns the overrides that use them on a CPU."""
    data = {}
    for split in ("Train", "Eval"):
        for kind, shape in (("image", (10, *image_shape)), ("label", (10,))):
            header = bytes([0, 0, 8, len(shape), *(byte for size in shape for byte in (0, 0, 0, size))])
            file = folder / f"{split}-{kind}.idx"
            file.write_bytes(header + np.zeros(shape, np.uint8).tobytes())
            data[f"DataLoader.{split}.dataset.{kind}_file"] = file
    paths = [f"{key}={file}" for key, file in data.items()]
    return [*paths, "Global.device=cpu", "AMP=null", "Infer=null", "DataLoader.Train.sampler.batch_size=4"]


def measure(folder: Path, lines: str, *options: str) -> int:
    """Runs the command with a program in the place of PyTorch's interpreter that prints ``lines``."""
    folder.mkdir(exist_ok=True)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] || printf '%s\\n' '{lines}'\n")
    python.chmod(0o755)
    words = ["-c", str(CONFIGS / "fashion_mnist_fast.yaml"), "--out", str(folder / "out"), "--seeds", "1"]
    words += ["--frameworks", "PyTorch", "--torch", str(python), *options]
    return measure_accuracy([*words, "-o", *small(folder), "Arch.depth=10", "Arch.widen_factor=1"])


def test_table_compares_the_difference_with_the_noise_of_the_seeds() -> None:
    ours = {1: AccuracyCurve((0.93, 0.95), (10.0, 20.0)), 2: AccuracyCurve((0.94, 0.96), (10.0, 20.0))}
    theirs = {1: AccuracyCurve((0.90, 0.94), (30.0, 40.0)), 2: AccuracyCurve((0.90, 0.93), (30.0, 40.0))}
    lines = describe({"ppcls": ours, "PyTorch": theirs}, 0.94).splitlines()
    assert lines[1].split() == ["ppcls", "0.9550", "(0.9500", "to", "0.9600),", "seeds:", "2", "15", "20"]
    assert lines[2].split()[-5:] == ["1", "of", "2", "runs", "40"]
    assert lines[3] == (
        "the difference +0.0200 (ppcls - PyTorch) exceeds two standard errors of the seeds, 0.0141"
    )


def test_job_has_the_settings_of_the_config(tmp_path: Path) -> None:
    config = load(tmp_path, "wrn", "Arch.depth=10", "Arch.widen_factor=1", "Global.epochs=4")
    job = describe_run(config, tmp_path / "weights.npz", compiled=True)
    expected = {
        **{"epochs": 4, "batch_size": 4, "drop_last": False, "precision": "float32", "smoothing": 0.1},
        **{"padding": 4, "flip": 0.5, "mean": [0.286] * 3, "std": [0.353] * 3, "mix": None},
        "ema": {"decay": 0.999, "warmup": True},
        "erase": {"probability": 0.5, "sl": 0.02, "sh": 0.4, "r1": 0.3},
    }
    assert {key: job[key] for key in expected} == expected
    assert job["network"] == {
        **{"timm": None, "options": {}, "strides": None, "stem_patch": None, "batch_norm_momentum": 0.9},
        **{"depth": 10, "widen_factor": 1, "block": "fixmatch"},
    }
    assert job["optimizer"] == {
        **{"name": "Momentum", "momentum": 0.9, "use_nesterov": True},
        **{"weight_decay": 0.0005, "no_decay": []},
    }
    # Three updates per epoch of ten images: two epochs of warm-up, and two of half a cosine.
    rates = [0.0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067]
    assert job["learning_rates"] == pytest.approx([0.2 * rate for rate in rates], abs=1e-4)
    assert json.loads(json.dumps(job)) == job


@pytest.mark.parametrize("name", NAMES)
def test_every_config_of_fashion_mnist_has_a_run_in_pytorch(tmp_path: Path, name: str) -> None:
    job = describe_run(load(tmp_path, name), tmp_path / "weights.npz", compiled=True)
    updates = 2 if job["drop_last"] else 3
    assert len(job["learning_rates"]) == job["epochs"] * updates
    assert job["network"]["timm"] == {
        "resnet18": "resnet18",
        "vit": "deit_tiny_patch16_224",
        "convnext": "convnext_tiny",
    }.get(name)


@pytest.mark.parametrize("name", ["wrn", "wrn28", "resnet18", "fast"])
def test_recipes_that_were_run_have_a_target(tmp_path: Path, name: str) -> None:
    target = load(tmp_path, name).Global.target
    assert target is not None
    assert 0.94 <= target["top1"] < 0.97


@pytest.mark.parametrize("shape", [(28, 28), (20, 20), (32, 40, 3)])
def test_job_has_the_size_of_resized_images(tmp_path: Path, shape: Sequence[int]) -> None:
    job = describe_run(load(tmp_path, "fast", shape=shape), tmp_path / "weights.npz", compiled=True)
    assert job["train"]["size"] == job["test"]["size"] == [28, 28]


@pytest.mark.parametrize("size", [(28, 28), (19, 45)])
@pytest.mark.parametrize("shape", [(28, 28), (20, 20), (32, 32, 3), (57, 64, 3), (1, 7)])
def test_script_resizes_images_as_ppcls(shape: Sequence[int], size: tuple[int, int]) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, *shape), np.uint8)
    height, width = size
    spec = ResizeImage(size=(width, height))
    expected = np.stack([apply(spec, image.reshape(*shape[:2], -1), ()) for image in images])
    resized = resize(images, size).reshape(expected.shape)
    assert np.abs(resized.astype(int) - expected).max() <= 1  # OpenCV computes in fixed point


def test_many_images_are_resized_in_batches() -> None:
    images = np.random.default_rng(1).integers(0, 256, (1001, 4, 5), np.uint8)
    resized = resize(images, (3, 7))
    for position in (0, 999, 1000):
        np.testing.assert_array_equal(resized[position], resize(images[position : position + 1], (3, 7))[0])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("{OpSampler: {CutmixOperator: {alpha: 1.0, prob: 0.4}}}", ((0.0, 1.0), (0.4, 1.0))),
        ("{MixupOperator: {alpha: 0.2}}", ((1.0, 0.2), (0.0, 1.0))),
        ("{CutmixOperator: {alpha: 0.5}}", ((0.0, 1.0), (1.0, 0.5))),
    ],
)
def test_job_has_the_mixing_of_the_config(
    tmp_path: Path, change: str, expected: tuple[tuple[float, float], tuple[float, float]]
) -> None:
    config = load(tmp_path, "wrn", f"DataLoader.Train.dataset.batch_transform_ops=[{change}]")
    mix = describe_run(config, tmp_path / "weights.npz", compiled=True)["mix"]
    assert tuple((mix[kind]["prob"], mix[kind]["alpha"]) for kind in ("mixup", "cutmix")) == expected


@pytest.mark.parametrize("last_epoch", [None, 3])
@pytest.mark.parametrize("transform", ["MixupOperator", "CutmixOperator", "OpSampler"])
def test_job_has_the_last_epoch_of_mixing(tmp_path: Path, transform: str, last_epoch: int | None) -> None:
    keys: dict[str, object] = {"last_epoch": last_epoch}
    if transform == "OpSampler":
        keys["MixupOperator"] = {"prob": 0.5}
    change = json.dumps([{transform: keys}])
    config = load(tmp_path, "wrn", f"DataLoader.Train.dataset.batch_transform_ops={change}")
    mix = describe_run(config, tmp_path / "weights.npz", compiled=True)["mix"]
    assert mix["last_epoch"] == last_epoch


def test_job_has_the_second_pass_of_the_config(tmp_path: Path) -> None:
    without = load(tmp_path, "wrn", "Optimizer.sam_rho=null", "Optimizer.sam_first_epoch=1")
    assert describe_run(without, tmp_path / "weights.npz", compiled=True)["sam"] is None
    late = load(tmp_path, "wrn", "Optimizer.sam_rho=0.1", "Optimizer.sam_first_epoch=2")
    expected = {"rho": 0.1, "first_epoch": 2}
    assert describe_run(late, tmp_path / "weights.npz", compiled=True)["sam"] == expected


def test_weights_have_the_names_of_pytorch(tmp_path: Path) -> None:
    config = load(tmp_path, "vit", f"Global.output_dir={tmp_path / 'run'}", "Global.use_dali=False")
    exempt = write_weights(config, tmp_path / "weights.npz")
    arrays = np.load(tmp_path / "weights.npz")
    assert arrays["patch_embed.proj.weight"].shape == (192, 3, 4, 4)
    assert arrays["blocks.11.mlp.fc1.weight"].shape == (768, 192)  # transposed
    assert sorted(exempt) == sorted(name for name in arrays.files if arrays[name].ndim == 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            "Arch={name: ResNet50_vd, class_num: 10}",
            r"Arch\.name: expected a network that PyTorch trains, too",
        ),
        ("Arch.dropout=0.1", r"Arch\.dropout: the script for PyTorch does not have this option"),
        (
            "Arch={name: ResNet18, class_num: 10, stride_list: [1, 1, 1, 2, 2]}",
            r"Arch\.stride_list: expected \[1, 2, 2, 2\]",
        ),
        ("Optimizer.name=Lamb", r"Optimizer\.name: expected Momentum or AdamW"),
        ("Optimizer.clip_norm=1.0", r"Optimizer\.clip_norm: expected None"),
        (
            "DataLoader.Train.dataset.transform_ops.1.ResizeImage={size: 28, backend: pil}",
            r"ResizeImage\.backend: expected cv2",
        ),
        (
            "DataLoader.Train.dataset.transform_ops.1.ResizeImage.size=32",
            r"RandomCropImage\.size: expected \(32, 32\)",
        ),
        ("Global.update_freq=2", r"Global\.update_freq: expected 1"),
        ("DataLoader.Train.dataset.transform_ops.3={ColorJitter: {}}", "does not have ColorJitter"),
        (
            "DataLoader.Train.dataset.transform_ops.2.Pad.padding_mode=reflect",
            r"Pad\.padding_mode: expected c",
        ),
        (
            "DataLoader.Train.dataset.transform_ops.4={RandomErasing: {}}",
            r"transforms: expected \['DecodeImage', .*'NormalizeImage', 'RandomErasing'\]",
        ),
        (
            "DataLoader.Eval.dataset.transform_ops.2.NormalizeImage.std=[0.5, 0.5, 0.5]",
            r"NormalizeImage\.std: expected \(0.353, 0.353, 0.353\)",
        ),
    ],
)
def test_other_configs_are_errors(tmp_path: Path, change: str, text: str) -> None:
    config = load(tmp_path, "wrn", change)
    with pytest.raises(UserError, match=text):
        describe_run(config, tmp_path / "weights.npz", compiled=True)


def test_finished_runs_are_not_repeated_and_other_settings_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path, '{"epoch": 2, "top1": 0.5}', "--epochs", "2") == 0
    assert "PyTorch    0.5000" in capsys.readouterr().out
    assert measure(tmp_path, '{"epoch": 2, "top1": 0.9}', "--epochs", "2") == 0
    assert "PyTorch    0.5000" in capsys.readouterr().out
    for options in (["--epochs", "3"], ["--epochs", "2", "--torch-eager"]):
        assert measure(tmp_path, '{"epoch": 3, "top1": 0.9}', *options) == 2
        assert "set another folder with --out" in capsys.readouterr().err


def test_run_without_accuracy_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(tmp_path, "no evaluation") == 2
    assert "the run printed no top1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (
            "log\\nerror: labels, image 0: bad\\n  labels, image 1: bad",
            "labels, image 0: bad\n  labels, image 1: bad",
        ),
        ("Traceback\\n  File\\nValueError: bad", "ValueError: bad"),
    ],
)
def test_failed_run_is_reported_with_its_error(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    shown: str,
) -> None:
    line = [sys.executable, "-c", f"print('{output}'); raise SystemExit(2)"]
    monkeypatch.setattr("benchmarks.accuracy.command.ppcls_command", lambda *_words: line)
    assert measure(tmp_path, '{"epoch": 1, "top1": 0.5}', "--frameworks", "ppcls") == 2
    assert f"error: the run ended with exit code 2; its log is in --out: {shown}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--torch", "/no/python"], "--torch /no/python: No such file or directory"),
        (["--torch", "false"], "--torch false: exit code 1; name a Python interpreter with PyTorch"),
        (
            ["-o", "Optimizer.clip_norm=1.0"],
            "Optimizer.clip_norm: expected None, as in the script for PyTorch",
        ),
    ],
)
def test_missing_pytorch_and_other_configs_are_errors_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    assert measure(tmp_path, '{"epoch": 1, "top1": 0.5}', "--frameworks", "ppcls", "PyTorch", *options) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
