"""configs/finetune.yaml on a folder of pictures, from the command to the names that prediction prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from paths import ROOT

from ppcls.cli import infer as infer_cli
from ppcls.cli import train as cli

FINETUNE = ROOT / "configs" / "finetune.yaml"
SMALL = {
    "Global.device": "cpu",
    "Global.epochs": 2,
    "Global.save_interval": 1,
    "Global.image_shape": "[3, 32, 32]",
    "Arch.name": "MobileNetV3_small_x0_35",
    "DataLoader.Train.sampler.batch_size": 8,
    "DataLoader.Train.loader.dali.num_threads": 1,
    "DataLoader.Eval.loader.dali.num_threads": 1,
    "DataLoader.Train.dataset.transform_ops.1.RandCropImage.size": 32,
    "DataLoader.Eval.dataset.transform_ops.1.ResizeImage.resize_short": 36,
    "DataLoader.Eval.dataset.transform_ops.2.CropImage.size": 32,
    "Infer.transforms.1.ResizeImage.resize_short": 36,
    "Infer.transforms.2.CropImage.size": 32,
}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for channel, (name, count) in enumerate({"black cat": 9, "dog": 7, "emu": 6}.items()):
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        for number in range(count):
            image = rng.integers(0, 90, (40, 48, 3)).astype(np.uint8)
            image[..., channel] += 150
            cv2.imwrite(str(folder / f"{number}.png"), image)
    return tmp_path / "pictures"


def test_infer_after_train_on_a_folder_names_the_class(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    common = [f"{key}={value}" for key, value in SMALL.items()]
    common += [f"Global.output_dir={output}", f"DataLoader.Train.dataset.image_root={pictures}"]
    assert cli.train(["-c", str(FINETUNE), "-o", *common]) == 0
    said = capsys.readouterr().out
    reason = "MobileNetV3_small_x0_35_pretrained.pdparams: file not found, and PPCLS_OFFLINE forbids"
    assert re.search(rf"training from scratch \(Arch.pretrained=auto\): .*{reason}", said)
    how = "3 classes (black cat, dog, emu); 18 training images, 4 validation images (val_share 0.2)"
    assert f"{pictures}: {how}" in said
    assert (output / "label_list.txt").read_text() == "0 black cat\n1 dog\n2 emu\n"
    settled = yaml.safe_load((output / "config.yaml").read_text())
    assert settled["Arch"]["class_num"] == 3
    assert settled["DataLoader"]["Eval"]["dataset"]["image_root"] == str(pictures)

    # it continues with the same split
    more = ["Global.epochs=3", "Global.checkpoints=auto"]
    assert cli.train(["-c", str(FINETUNE), "-o", *common, *more]) == 0
    said = capsys.readouterr().out
    assert re.search(r"resumed .*: epoch 3", said)
    assert "the training data" not in said

    photo = str(pictures / "dog" / "1.png")
    assert infer_cli.infer(["--model", str(output / "best_model"), photo, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["names"]) < {"black cat", "dog", "emu"}
    assert infer_cli.infer(["-c", str(FINETUNE), photo, "-o", *common]) == 0
    assert re.search(r"(black cat|dog|emu) \d", capsys.readouterr().out)


def test_class_folder_with_another_name_is_reported(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**SMALL, "DataLoader.Train.dataset.image_root": pictures}

    def train(name: str, code: int = 0, **more: object) -> str:
        settings = {**given, "Global.output_dir": tmp_path / name, **more}
        arguments = [f"{key}={value}" for key, value in settings.items()]
        assert cli.train(["-c", str(FINETUNE), "-o", *arguments]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    train("output")
    (pictures / "black cat").rename(pictures / "zcat")  # now all labels mean something else
    best = tmp_path / "output" / "best_model"
    other = train("other", **{"Global.pretrained_model": best})
    reordered = (
        "the classifier was reordered by the names of the classes: dog, emu; zcat starts from black cat"
    )
    assert f"{best}: {reordered}\n" in other
    resuming = {"Global.checkpoints": "auto", "Global.epochs": 3}
    assert "can't resume, because the classes changed: 3 classes before, 3 now (added zcat" in train(
        "output", 2, **resuming
    )
    (pictures / "zcat").rename(pictures / "cat")  # all labels mean the same
    again = train("output", **resuming)
    assert "  changed: the class names: 0 was 'black cat' and is now 'cat'" in again


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"Arch.name": "EfficientNet_lite0"},
            r"weights from .*\.pth; classifier.bias, classifier.weight are random, for 3 classes\n"
            r"warning: .*\.pth expects other images: DataLoader.Train: NormalizeImage with mean \[0.498, .*\n"
            r"chosen by Arch.pretrained=auto; Arch.pretrained=False trains from scratch",
        ),
        pytest.param(
            {"Arch.name": "EfficientNet_lite0", "Arch.pretrained": "False"},
            r"no initial weights \(Global.pretrained_model\): training from scratch",
            marks=pytest.mark.slow,
        ),
        (
            {"Arch.name": "SE_ResNet18"},
            r"training from scratch \(Arch.pretrained=auto\): SE_ResNet18 has no published weights; "
            r"nearest with weights: SE_ResNet18_vd, ",
        ),
        (
            {"Arch.name": "EfficientNet_lite0", "Arch.timm_variant": "True"},
            r"training from scratch \(Arch.pretrained=auto\): published weights do not fit Arch.timm_variant",
        ),
    ],
)
def test_small_data_set_starts_from_published_weights_if_there_are_some(
    pictures: Path,
    tmp_path: Path,
    settings: dict[str, str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ppcls.engine.train.fit", lambda run: None)  # what is expected comes earlier
    changed = {
        **SMALL,
        "DataLoader.Train.dataset.image_root": pictures,
        "Global.output_dir": tmp_path / "run",
        "Global.epochs": 1,
        **settings,
    }
    arguments = [f"{key}={value}" for key, value in changed.items()]
    assert cli.train(["-c", str(FINETUNE), "-o", *arguments]) == 0
    assert re.search(expected, capsys.readouterr().out)


def test_large_data_set_trains_from_scratch(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ppcls.engine.initial_weights._SMALL_DATA", 17)
    monkeypatch.setattr("ppcls.engine.train.fit", lambda run: None)
    changed = {**SMALL, "DataLoader.Train.dataset.image_root": pictures, "Global.epochs": 1}
    changed |= {"Arch.name": "EfficientNet_lite0", "Global.output_dir": tmp_path / "run"}
    assert cli.train(["-c", str(FINETUNE), "-o", *(f"{key}={value}" for key, value in changed.items())]) == 0
    expected = "training from scratch (Arch.pretrained=auto): 18 training images are more than 17"
    assert expected in capsys.readouterr().out
