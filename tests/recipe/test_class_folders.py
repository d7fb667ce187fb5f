"""Values that follow from image folders, and errors about folders that can't be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from ppcls import fit
from ppcls.data.index.class_folders import find_class_root
from ppcls.errors import UserError
from ppcls.recipe.class_folders import checked_output_dir, fill_from_class_folders
from ppcls.recipe.load import load_config

FINETUNE = ROOT / "configs" / "finetune.yaml"
KEY = "DataLoader.Train.dataset.image_root"


def make_folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def image_folder(root: Path | str) -> dict[str, Any]:
    return {"Train": {"dataset": {"name": "ImageFolderDataset", "image_root": str(root)}}}


def test_fill_counts_classes_and_shares_the_folder_with_eval(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "my pictures", "cat", "dog", "emu", ".cache")
    config = load_config(FINETUNE, [f"{KEY}={root}", "DataLoader.Train.dataset.val_share=0.5"])
    assert config.Arch.class_num == 3
    train, evaluation = config.DataLoader.Train.dataset, config.DataLoader.Eval.dataset
    assert (train.image_root, train.part) == (str(root), "train")
    assert (evaluation.image_root, evaluation.part, evaluation.val_share) == (str(root), "val", 0.5)


def test_find_class_root_uses_folders_train_and_val(tmp_path: Path) -> None:
    root = make_folders(tmp_path, "train/a", "train/b", "val/a", "val/b", "test/x")
    assert load_config(FINETUNE, [f"{KEY}={root}"]).Arch.class_num == 2
    assert find_class_root(root, "train") == (root / "train", True)
    assert find_class_root(root, "val") == (root / "val", True)
    assert find_class_root(root, None) == (root, True)


@pytest.mark.parametrize("name", ["valid", "validation"])
def test_find_class_root_accepts_other_names_of_val(tmp_path: Path, name: str) -> None:
    root = make_folders(tmp_path, "train/a", "train/b", f"{name}/a", f"{name}/b", "test/x")
    assert find_class_root(root, "val") == (root / name, True)
    make_folders(root, "val/a", "val/b")
    assert find_class_root(root, "val") == (root / "val", True)


def test_fill_does_not_count_metadata_of_macos(tmp_path: Path) -> None:
    root = make_folders(tmp_path, "cat", "dog", "__MACOSX/cat")
    assert load_config(FINETUNE, [f"{KEY}={root}"]).Arch.class_num == 2


def test_find_class_root_accepts_classes_named_train_and_val(tmp_path: Path) -> None:
    root = make_folders(tmp_path, "train", "val", "bus")
    assert find_class_root(root, "train") == (root, False)


@pytest.mark.parametrize(("found", "missing"), [("train", "val"), ("val", "train")])
def test_find_class_root_with_one_part_names_the_missing_one(
    tmp_path: Path, found: str, missing: str
) -> None:
    make_folders(tmp_path, f"{found}/a", f"{found}/b", "test/a")
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, [f"{KEY}={tmp_path}"])
    message = str(caught.value)
    assert message.startswith(
        f"{tmp_path}: contains a folder {found} with class folders, but no folder {missing}; "
    )
    assert f"set image_root to {tmp_path / found}" in message


@pytest.mark.parametrize("names", [("Train", "Valid"), ("TRAIN", "VAL")])
def test_find_class_root_capitalized_parts_are_not_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    make_folders(tmp_path, *(f"{name}/{label}" for name in names for label in "ab"))
    with pytest.raises(UserError, match=rf"has class folders in {names[0]}.*rename these folders to train"):
        load_config(FINETUNE, [f"{KEY}={tmp_path}"])


def test_find_class_root_capitalized_class_without_folders_is_a_class(tmp_path: Path) -> None:
    make_folders(tmp_path, "Train", "Bus")
    assert load_config(FINETUNE, [f"{KEY}={tmp_path}"]).Arch.class_num == 2


@pytest.mark.parametrize(("names", "found"), [((), "none"), (("cat",), "only 'cat'")])
def test_fill_fewer_than_two_classes_raises(tmp_path: Path, names: tuple[str, ...], found: str) -> None:
    make_folders(tmp_path, *names)
    with pytest.raises(UserError, match=f"at least two classes, found {found}"):
        load_config(FINETUNE, [f"{KEY}={tmp_path}"])


def test_fill_sets_classes_of_members_and_heads_only(tmp_path: Path) -> None:
    make_folders(tmp_path, "a", "b", "c")
    auto = {"name": "ResNet18", "class_num": "auto"}
    parts = {part: dict(auto) for part in ("Backbone", "Neck", "Head")}
    fill_from_class_folders({"Arch": {"name": "RecModel", **parts}, "DataLoader": image_folder(tmp_path)})
    assert [part["class_num"] for part in parts.values()] == [3, "auto", 3]
    models: list[Any] = [{"Teacher": dict(auto)}, {"Student": dict(auto)}, "no model"]
    arch = {"name": "DistillationModel", "models": models}
    fill_from_class_folders({"Arch": arch, "DataLoader": image_folder(tmp_path)})
    counted = {**auto, "class_num": 3}
    assert models == [{"Teacher": counted}, {"Student": counted}, "no model"]


def test_fill_without_folder_counts_the_label_list(tmp_path: Path) -> None:
    overrides = [f"{KEY}={tmp_path}/gone", f"Global.output_dir={tmp_path}"]
    with pytest.raises(UserError, match=r"gone: no such folder \(DataLoader\.Train.dataset.image_root\)"):
        load_config(FINETUNE, overrides)
    (tmp_path / "label_list.txt").write_text("0 a b\n1 ü\n\n2 c\n", encoding="utf-8")
    assert load_config(FINETUNE, overrides).Arch.class_num == 3
    (tmp_path / "label_list.txt").write_bytes(b"0 \xff\n")
    with pytest.raises(UserError, match=r"Arch\.class_num: auto: can't count the classes"):
        load_config(FINETUNE, overrides)


@pytest.mark.parametrize("root", ["a\0b", "x" * 5000])
def test_fill_impossible_folder_name_raises(root: str) -> None:
    with pytest.raises(UserError):
        fill_from_class_folders({"Arch": {"class_num": "auto"}, "DataLoader": image_folder(root)})


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"DataLoader": [1]},
        {"DataLoader": {"Train": {"dataset": {"name": "ImageNetDataset"}}}},
        {"DataLoader": {"Train": {"dataset": {"name": "ImageFolderDataset"}}}},
    ],
)
def test_fill_auto_without_image_folder_raises(data: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"auto counts class folders, so it needs an ImageFolderDataset"):
        fill_from_class_folders({"Arch": {"class_num": "auto"}, **data})


@pytest.mark.parametrize(("root", "shown"), [("2024", "2024"), ("new: cats", "{'new': 'cats'}")])
def test_fill_folder_that_is_no_text_in_yaml_raises(root: str, shown: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, [f"{KEY}={root}"])
    assert str(caught.value).startswith(f"{KEY}: expected text, got {shown}; put the value in quotes")


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["DataLoader.Eval.dataset.part=train"],
            "DataLoader.Eval.dataset.part: training and evaluation on one folder must not share images",
        ),
        (
            ["DataLoader.Eval.dataset.split_seed=1"],
            "DataLoader.Eval.dataset.split_seed: expected 0, the value in DataLoader.Train",
        ),
        (
            ["DataLoader.Train.dataset.part=null", "DataLoader.Train.dataset.val_share=0.3"],
            "DataLoader.Train.dataset: val_share needs part: train or part: val",
        ),
    ],
)
def test_parts_that_overlap_are_reported(tmp_path: Path, overrides: list[str], problem: str) -> None:
    make_folders(tmp_path, "a", "b")
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, [f"{KEY}={tmp_path}", *overrides])
    assert f"\n  {problem}" in str(caught.value)


@pytest.mark.parametrize("written", [(), ("DataLoader.Eval.dataset.class_names=null",)])
def test_validation_folders_get_the_names_of_the_training_folders(
    tmp_path: Path, written: tuple[str, ...]
) -> None:
    """Configs that ppcls wrote contain null for the names."""
    root = make_folders(tmp_path, "train/a", "train/b", "train/c", "val/c")
    config = load_config(FINETUNE, [f"{KEY}={root}", *written])
    assert config.Arch.class_num == 3
    assert config.DataLoader.evaluated["Eval"].dataset.class_names == ("a", "b", "c")
    make_folders(root, "val/a", "val/b")
    assert load_config(FINETUNE, [f"{KEY}={root}"]).DataLoader.evaluated["Eval"].dataset.class_names is None


def test_class_names_determine_the_number_of_classes(tmp_path: Path) -> None:
    root = make_folders(tmp_path, "a", "b")
    names = "DataLoader.Train.dataset.class_names=[b, a, other]"
    config = load_config(FINETUNE, [f"{KEY}={root}", names])
    assert config.Arch.class_num == 3
    assert config.DataLoader.evaluated["Eval"].dataset.class_names == ("b", "a", "other")


def test_query_and_gallery_share_the_labels_of_their_folders(tmp_path: Path) -> None:
    parts = {"Query": ("b", "d"), "Gallery": ("a", "b", "c")}
    splits = {
        part: image_folder(make_folders(tmp_path / part, *names))["Train"] for part, names in parts.items()
    }
    tree = {"DataLoader": {"Eval": splits}}
    fill_from_class_folders(tree)
    names = [splits[part]["dataset"]["class_names"] for part in parts]
    assert names == [["a", "b", "c", "d"]] * 2


@pytest.mark.parametrize("output", ["{root}/output", "{root}/cat/runs/1", "{root}", "{root}/../link/output"])
def test_output_inside_the_images_is_rejected(tmp_path: Path, output: str) -> None:
    root = make_folders(tmp_path / "pictures", "cat", "dog")
    (tmp_path / "link").symlink_to("pictures")
    folder = output.format(root=root)
    config = load_config(FINETUNE, [f"{KEY}={root}", f"Global.output_dir={folder}"])
    with pytest.raises(UserError, match=r"Global.output_dir: .* is inside the class folders .*pictures"):
        checked_output_dir(config.Global, config.used_splits)
    with pytest.raises(UserError, match="is inside the class folders"):
        fit(config)
    assert sorted(path.name for path in root.rglob("*")) == ["cat", "dog"]


def test_output_beside_train_and_val_is_accepted(tmp_path: Path) -> None:
    root = make_folders(tmp_path / "pictures", "train/cat", "train/dog", "val/cat", "val/dog")
    for folder in (root / "output", tmp_path / "pictures2"):
        config = load_config(FINETUNE, [f"{KEY}={root}", f"Global.output_dir={folder}"])
        assert checked_output_dir(config.Global, config.used_splits) == folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my run.yaml", "this is a config, not a folder of images; to use it, write -c '{}'"),
        ("list.TXT", "this is a list, not a folder of images; `ppcls dataset labels TABLE --images FOLDER`"),
        ("pets.zip", "this is an archive, not a folder of images; unpack it first"),
        ("cat.jpg", "this is one image, not a folder of images; name the folder that contains"),
        ("mnist.npz", "this is a file of arrays, not a folder of images; write the images as PNG files"),
        ("x.PKL", "this is a file of arrays, not a folder of images; write the images as PNG files"),
        ("a.other", "this is a file, not a folder of images; docs/data.md#sources lists what ppcls reads"),
        *(
            (name, f"this is a file, not a folder of images; {dataset} reads it: set DataLoader.Train.")
            for name, dataset in {
                "train-images-idx3-ubyte.gz": "IdxDataset",
                "t10k-labels-idx1-ubyte": "IdxDataset",
                "cifar-10-python.tar.gz": "Cifar10",
                "a.parquet": "ParquetDataset",
                "a.tfrecord": "TFRecordDataset",
                "a.rec": "RecordIODataset",
                "data.mdb": "LMDBDataset",
            }.items()
        ),
    ],
)
def test_a_file_instead_of_a_folder_is_explained(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(UserError) as caught:
        load_config(FINETUNE, {"DataLoader.Train.dataset.image_root": str(file)})
    assert str(caught.value).startswith(f"{file}: {text.format(file)}")
