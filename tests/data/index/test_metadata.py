"""Image folders of Hugging Face, whose labels are in ``metadata.csv`` or ``metadata.jsonl``."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.cli import main as cli
from ppcls.data.index.class_folders import list_class_folders, read_metadata
from ppcls.data.index.folders import ImageFolderDataset
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError

Rows = list[tuple[object, object]]
NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cn")), min_size=1, max_size=6
)


def write_csv(folder: Path, rows: Rows) -> None:
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("file_name", "text", "label"), *((path, "a,\nb", label) for path, label in rows)]
        )


def write_jsonl(folder: Path, rows: Rows) -> None:
    lines = [json.dumps({"file_name": path, "label": label}) for path, label in rows]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")


FORMATS = [write_csv, write_jsonl]
Write = Callable[[Path, Rows], None]


def dataset(folder: Path, **keys: object) -> ImageFolderDataset:
    return ImageFolderDataset(
        image_root=str(folder), transform_ops=(DecodeImage(), ResizeImage(size=8), NormalizeImage()), **keys
    )


@pytest.mark.parametrize("write", FORMATS)
@given(labels=st.lists(NAMES, min_size=1, max_size=8))
def test_any_names_become_classes(
    tmp_path_factory: pytest.TempPathFactory, write: Write, labels: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("metadata")
    write(folder, [(f"a/{number}.png", label) for number, label in enumerate(labels)])
    index = dataset(folder).read(None)
    classes = list_class_folders(folder)
    metadata = read_metadata(folder)
    assert metadata is not None
    assert [classes[label] for label in index.labels] == list(metadata.labels)
    assert index.name(0) == str(folder / "a" / "0.png")


@pytest.mark.parametrize("write", FORMATS)
def test_numbers_are_labels_in_their_order(tmp_path: Path, write: Write) -> None:
    write(tmp_path, [(f"{number}.png", number) for number in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)])
    assert dataset(tmp_path).read(11).labels.tolist() == [10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("write", FORMATS)
def test_a_changed_file_is_read_again(tmp_path: Path, write: Write) -> None:
    write(tmp_path, [("1.png", "cat")])
    assert list_class_folders(tmp_path) == ("cat",)
    write(tmp_path, [("1.png", "horse")])
    assert list_class_folders(tmp_path) == ("horse",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metadata.csv", "label\ncat\n", "no column 'file_name'"),
        ("metadata.csv", "file_name,label\n,cat\n", "line 2: file_name: expected the path"),
        ("metadata.csv", "file_name,label\n/etc/passwd,cat\n", "expected a path in the folder of this file"),
        (
            "metadata.csv",
            "file_name,label\na/../../b.png,cat\n",
            "expected a path in the folder of this file",
        ),
        ("metadata.csv", "file_name,label\na.png\n", "line 2: label: expected one class name"),
        ("metadata.csv", 'file_name,label\n"a.png,cat\n', "expected UTF-8 text with a table"),
        ("metadata.jsonl", '{"file_name": "a.png", "label": ["a", "b"]}', "label: expected one class name"),
        ("metadata.jsonl", '{"file_name": 3, "label": "a"}', "file_name: expected the path"),
        ("metadata.jsonl", '{"file_name": "a.png", "label": "a"}\n[1]', "one JSON object per line: line 2"),
        ("metadata.jsonl", "[" * 100_000, "one JSON object per line"),
        ("metadata.csv", "file_name,class\na.png,cat\n", "rename the column of the classes"),
    ],
)
def test_invalid_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        dataset(tmp_path).read(None)


def test_bytes_of_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_bytes("file_name,label\na.png,Bär\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"metadata\.csv: expected UTF-8"):
        dataset(tmp_path).read(None)


@pytest.mark.parametrize("write", FORMATS)
def test_audit_and_split(tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows: Rows = []
    pictures = tmp_path / "pictures"
    for number in range(12):
        path = pictures / "images" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 255, (8, 8, 3), np.uint8))
        rows.append((f"images/{number}.png", ("cat", "dog")[number % 2]))
    write(pictures, rows[:-1])
    config = dataset(pictures, part="train")
    assert len(config.read(2)) == 9
    assert "ignored 1 image without a line" in "\n".join(config.describe_ignored())
    assert (
        cli.main(["dataset", "split", str(pictures), "--val", "0.25", "--out", str(tmp_path / "lists")]) == 0
    )
    assert (tmp_path / "lists" / "label_list.txt").read_text() == "0 cat\n1 dog\n"
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("action,file,label,reason\nrelabel,images/1.png,cat,x\n")
    assert cli.main(["dataset", "audit", str(pictures), "--fix", str(fixes)]) == 2
    assert "has the labels; change them there" in capsys.readouterr().err
