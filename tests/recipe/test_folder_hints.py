"""A path that is no image folder: the error says what it is and what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest

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
        ("train_list.txt", "; a list of images needs a config: docs/own-data.md#folders-and-lists"),
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


def test_folder_one_level_too_high_or_too_deep_is_explained(pictures: Path) -> None:
    for folder in (pictures.parent, pictures / "cats"):
        with pytest.raises(UserError, match=f"did you mean {pictures}\\?$"):
            load_config("finetune", [f"{ROOT_KEY}={folder}"])


def test_images_without_class_folders_are_explained(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "1.png").touch()
    assert explain_too_few_classes(tmp_path / "alone").endswith("put them into one subfolder per class")
    assert explain_too_few_classes(tmp_path) == ""
