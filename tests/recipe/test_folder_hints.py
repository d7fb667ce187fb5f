"""A path that is no image folder: the error says what it is and what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT
from PIL import Image

from ppcls.cli.dataset import main as dataset
from ppcls.cli.train import train
from ppcls.data.index.files import read_folder
from ppcls.errors import UserError
from ppcls.recipe.folder_hints import explain_missing_folder, explain_too_few_classes
from ppcls.recipe.load import load_config

ROOT_KEY = "DataLoader.Train.dataset.image_root"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("cats", "dogs"):
        folder = tmp_path / "download" / "pictures" / name
        folder.mkdir(parents=True)
        (folder / "1.jpg").touch()
    return tmp_path / "download" / "pictures"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mine.yaml", "; a config needs -c: `ppcls train -c "),
        ("quickstart", "; a config needs -c: `ppcls train -c "),
        ("resnet18", "; ResNet18 is an architecture: `ppcls train FOLDER --model ResNet18`"),
        ("pictures.zip", "; unpack this archive first"),
        ("train_list.txt", "; `ppcls dataset labels TABLE --images FOLDER` lets `ppcls train FOLDER` use"),
        ("C:\\me\\pictures", "; this is a path of Windows: in WSL, C:\\pictures is /mnt/c/pictures"),
        ("resnet50_8xb32_in1k.py", "; configs are YAML files"),
        ("photo.JPG", "; this is one image: name the folder that contains the folders of the classes"),
        ("picture", "; did you mean {parent}/pictures?"),
        ("Pictures", "; did you mean {parent}/pictures?"),
        ("elsewhere", ""),
        ("gone/elsewhere", ""),
    ],
)
def test_missing_folder_is_explained(name: str, hint: str, pictures: Path) -> None:
    found = explain_missing_folder(pictures.parent / name)
    assert found.startswith(hint.format(parent=pictures.parent))
    assert bool(found) == bool(hint)


def test_name_without_a_folder_is_not_downloaded() -> None:
    assert "`ppcls dataset digits` creates an example" in explain_missing_folder(Path("imagenet1k"))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--dry-run"],
        ["--find-batch-size"],
        ["-c", "CONFIG"],
    ],
)
def test_used_output_folder_does_not_hide_the_advice(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes are then counted in label_list.txt of the earlier run, so the config is valid."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "output" / "finetune"
    run.mkdir(parents=True)
    (run / "label_list.txt").write_text("0 cat\n1 dog\n")
    (run / "latest").symlink_to("checkpoints/step_1")
    config = tmp_path / "mine.yaml"
    config.write_text((ROOT / "ppcls/configs/finetune.yaml").read_text())
    assert train(["cifar10", *(str(config) if word == "CONFIG" else word for word in words)]) == 2
    message = capsys.readouterr().err
    assert (
        "cifar10: no such folder (DataLoader.Train.dataset.image_root); expected a folder with one subfolder "
        "of images per class; ppcls downloads no data sets; `ppcls dataset digits` creates an example\n"
    ) in message
    assert message.count("no such folder") == 1
    assert ("already holds a run" in message) == (words in ([], ["-c", "CONFIG"]))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["stats", "mnist.npz"], "found a file of arrays"),
        (["split", "a.parquet", "--out", "lists"], "found a container"),
        (["audit", "mnist.npz"], "this is a file of arrays, not a folder of images"),
        (["labels", "a.csv", "--images", "mnist.npz"], "this is a file of arrays, not a folder of images"),
    ],
)
def test_data_set_tools_explain_a_file_that_is_no_folder(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mnist.npz", "a.parquet", "a.csv"):
        (tmp_path / name).touch()
    assert dataset(words) == 2
    assert problem in capsys.readouterr().err


def test_folder_of_containers_is_explained(tmp_path: Path) -> None:
    (tmp_path / "0001.tfrecord").touch()
    with pytest.raises(UserError, match=r"found none; for 0001\.tfrecord, TFRecordDataset reads it: set "):
        load_config("finetune", [f"{ROOT_KEY}={tmp_path}"])


@pytest.mark.parametrize("words", [["stats"], ["audit"], ["split", "--out", "lists"]])
def test_data_set_tools_explain_a_missing_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dataset([words[0], "cifar10", *words[1:]]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: cifar10: no such folder")
    assert "one subfolder of " in message
    assert message.endswith("; ppcls downloads no data sets; `ppcls dataset digits` creates an example\n")


def test_folder_one_level_too_high_or_too_deep_is_explained(pictures: Path) -> None:
    for folder in (pictures.parent, pictures / "cats"):
        with pytest.raises(UserError, match=f"did you mean {pictures}\\?$"):
            load_config("finetune", [f"{ROOT_KEY}={folder}"])


def test_images_without_class_folders_are_explained(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "1.png").touch()
    assert explain_too_few_classes(tmp_path / "alone").endswith("put them into one subfolder per class")
    assert explain_too_few_classes(tmp_path).endswith("itself: put them into one subfolder per class")
    (tmp_path / "train.csv").touch()
    for folder in (tmp_path, tmp_path / "alone"):
        assert f"labels {tmp_path}/train.csv --images {tmp_path}/alone`" in explain_too_few_classes(folder)


@pytest.mark.parametrize("parts", [("train", "val"), ("Train", "Test"), ("test", "train", "valid")])
def test_parts_of_a_data_set_are_not_classes(parts: tuple[str, ...], tmp_path: Path) -> None:
    """Roboflow's exports, for example, have images and a table in each part."""
    for part in parts:
        (tmp_path / part).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / part / "1.png")
    with pytest.raises(UserError, match="are parts of a data set, not classes, and have no subfolders"):
        load_config("finetune", [f"{ROOT_KEY}={tmp_path}"])
    with pytest.raises(UserError, match="are parts of a data set, not classes"):
        read_folder(tmp_path, (".png",))
    assert set(read_folder(tmp_path, (".png",), class_names=parts).labels) == set(range(len(parts)))


def test_tools_ask_for_one_part_of_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("test", "train", "valid"):
        for name in ("cats", "dogs"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / part / name / "1.png")
    load_config("finetune", [f"{ROOT_KEY}={tmp_path}"])
    for command in (["stats"], ["split"], ["convert", "webdataset"]):
        assert dataset([*command, str(tmp_path), "--out", str(tmp_path.parent / "out")]) == 2
        assert f"not classes; name one of them, such as {tmp_path}/train" in capsys.readouterr().err
