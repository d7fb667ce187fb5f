"""What a config leaves to its folder of pictures, and what is said of folders that can't be meant."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from ppcls.config.class_folders import fill_from_class_folders, find_class_root
from ppcls.config.load import load_config
from ppcls.errors import UserError

FINETUNE = ROOT / "configs" / "finetune.yaml"
ROOT = "DataLoader.Train.dataset.image_root"


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_classes_are_counted_and_eval_is_a_part_of_the_same_folder(tmp_path: Path) -> None:
    root = folders(tmp_path / "my pictures", "cat", "dog", "emu", ".cache")
    config = load_config(FINETUNE, [f"{ROOT}={root}", "DataLoader.Train.dataset.val_share=0.5"])
    assert config.Arch.class_num == 3
    train, evaluation = config.DataLoader.Train.dataset, config.DataLoader.Eval.dataset
    assert (train.image_root, train.part) == (str(root), "train")
    assert (evaluation.image_root, evaluation.part, evaluation.val_share) == (str(root), "val", 0.5)


def test_folders_train_and_val_are_the_parts(tmp_path: Path) -> None:
    root = folders(tmp_path, "train/a", "train/b", "val/a", "val/b", "test/x")
    assert load_config(FINETUNE, [f"{ROOT}={root}"]).Arch.class_num == 2
    assert find_class_root(root, "train") == (root / "train", True)
    assert find_class_root(root, "val") == (root / "val", True)
    assert find_class_root(root, None) == (root, True)


def test_classes_called_train_and_val_are_classes(tmp_path: Path) -> None:
    root = folders(tmp_path, "train", "val", "bus")
    assert find_class_root(root, "train") == (root, False)


@pytest.mark.parametrize(("there", "missing"), [("train", "val"), ("val", "train")])
def test_one_of_both_is_not_enough(tmp_path: Path, there: str, missing: str) -> None:
    folders(tmp_path, f"{there}/a", f"{there}/b", "test/a")
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, [f"{ROOT}={tmp_path}"])
    assert str(caught.value) == (
        f"{tmp_path}: has a folder {there} of class folders, but no {missing}; call the folder of the other "
        f"images {missing}, or set image_root to {tmp_path / there} to share its images out"
    )


@pytest.mark.parametrize("names", [("Train", "Valid"), ("TRAIN", "VAL")])
def test_parts_in_capitals_are_no_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    folders(tmp_path, *(f"{name}/{label}" for name in names for label in "ab"))
    with pytest.raises(UserError, match=rf"has class folders in {names[0]}.*call the folders train and val"):
        load_config(FINETUNE, [f"{ROOT}={tmp_path}"])
    (tmp_path / "classes" / "Train").mkdir(parents=True)
    (tmp_path / "classes" / "Bus").mkdir()
    assert load_config(FINETUNE, [f"{ROOT}={tmp_path / 'classes'}"]).Arch.class_num == 2


def test_auto_counts_the_classes_of_a_head(tmp_path: Path) -> None:
    root = folders(tmp_path, "a", "b", "c")
    tree: dict[str, Any] = {
        "Arch": {"name": "RecModel", "Head": {"name": "FC", "class_num": "auto"}},
        "DataLoader": {"Train": {"dataset": {"name": "ImageFolderDataset", "image_root": str(root)}}},
    }
    fill_from_class_folders(tree)
    assert tree["Arch"]["Head"]["class_num"] == 3


@pytest.mark.parametrize(("names", "found"), [((), "none"), (("cat",), "only cat")])
def test_fewer_than_two_classes(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    folders(tmp_path, *names)
    with pytest.raises(UserError, match=f"for each of two classes or more, found {found}"):
        load_config(FINETUNE, [f"{ROOT}={tmp_path}"])


def test_models_within_and_heads_are_filled_in(tmp_path: Path) -> None:
    folders(tmp_path, "a", "b", "c")
    member, neck = {"name": "ResNet18", "class_num": "auto"}, {"name": "FC", "class_num": "auto"}
    data = {"Train": {"dataset": {"name": "ImageFolderDataset", "image_root": str(tmp_path)}}}
    parts = {"Backbone": dict(member), "Neck": neck, "Head": dict(member)}
    rec: dict[str, Any] = {"Arch": {"name": "RecModel", **parts}, "DataLoader": data}
    fill_from_class_folders(rec)
    assert [parts[each]["class_num"] for each in ("Backbone", "Neck", "Head")] == [3, "auto", 3]
    both: list[Any] = [{"Teacher": dict(member)}, {"Student": dict(member)}, "no model"]
    fill_from_class_folders({"Arch": {"name": "DistillationModel", "models": both}, "DataLoader": data})
    assert both == [
        {"Teacher": {**member, "class_num": 3}},
        {"Student": {**member, "class_num": 3}},
        "no model",
    ]


def test_without_the_folder_the_runs_own_list_counts(tmp_path: Path) -> None:
    gone = [f"{ROOT}={tmp_path}/gone", f"Global.output_dir={tmp_path}"]
    with pytest.raises(
        UserError, match=r"gone: there is no such folder \(DataLoader\.Train.dataset.image_root\)"
    ):
        load_config(FINETUNE, gone)
    (tmp_path / "label_list.txt").write_text("0 a b\n1 ü\n\n2 c\n", encoding="utf-8")
    assert load_config(FINETUNE, gone).Arch.class_num == 3
    (tmp_path / "label_list.txt").write_bytes(b"0 \xff\n")
    with pytest.raises(UserError, match=r"Arch\.class_num: auto: the classes can't be found"):
        load_config(FINETUNE, gone)


@pytest.mark.parametrize("root", ["a\0b", "x" * 5000])
def test_names_that_no_folder_has(root: str, tmp_path: Path) -> None:
    tree = {
        "Arch": {"class_num": "auto"},
        "DataLoader": {"Train": {"dataset": {"name": "ImageFolderDataset", "image_root": root}}},
    }
    with pytest.raises(UserError):
        fill_from_class_folders(tree)


@pytest.mark.parametrize(
    "tree",
    [
        {"Arch": {"class_num": "auto"}},
        {"Arch": {"class_num": "auto"}, "DataLoader": [1]},
        {"Arch": {"class_num": "auto"}, "DataLoader": {"Train": {"dataset": {"name": "ImageNetDataset"}}}},
        {
            "Arch": {"class_num": "auto"},
            "DataLoader": {"Train": {"dataset": {"name": "ImageFolderDataset"}}},
        },
    ],
)
def test_auto_needs_a_folder(tree: dict[str, Any]) -> None:
    with pytest.raises(
        UserError, match=r"auto counts the class folders of DataLoader\.Train\.dataset, which is no"
    ):
        fill_from_class_folders(tree)


@pytest.mark.parametrize(("root", "shown"), [("2024", "2024"), ("new: cats", "{'new': 'cats'}")])
def test_a_folder_that_yaml_takes_for_something_else(root: str, shown: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, [f"{ROOT}={root}"])
    assert str(caught.value).startswith(f"{ROOT}: expected text, got {shown}; YAML takes it")
    assert str(caught.value).endswith("put it in quotes")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["DataLoader.Eval.dataset.part=train"],
            "DataLoader.Eval.dataset.part: expected train for DataLoader.Train and val here, or they have "
            "images in common; got train and train",
        ),
        (
            ["DataLoader.Eval.dataset.split_seed=1"],
            "DataLoader.Eval.dataset.split_seed: expected DataLoader.Train's 0, or the parts have images in "
            "common, got 1; remove it",
        ),
        (
            ["DataLoader.Train.dataset.part=null", "DataLoader.Train.dataset.val_share=0.3"],
            "DataLoader.Train.dataset: val_share is for part: train and part: val, and part is not given",
        ),
        (
            ["DataLoader.Train.dataset.val_share=1"],
            "DataLoader.Train.dataset.val_share: expected a number > 0 and < 1, got 1",
        ),
    ],
)
def test_parts_that_overlap_are_refused(tmp_path: Path, overrides: list[str], told: str) -> None:
    folders(tmp_path, "a", "b")
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, [f"{ROOT}={tmp_path}", *overrides])
    assert told in str(caught.value).split(os.linesep + "  ")
