"""Tables of other tools become ``metadata.csv``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ppcls.cli.dataset import labels as command
from ppcls.data.index.class_folders import read_metadata
from ppcls.dataset_tools.labels import LabelColumns, LabelledFiles, read_labels, write_metadata
from ppcls.errors import UserError

NAMES = ["0a1b2c3d-x", "IMG 1", "b", "sub/c", "ü;,"]
LABELS = ["cats", "dogs", "cats", "dogs", "cats"]
CELLS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z"), exclude_characters="\ufeff"), min_size=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name in NAMES:
        path = folder / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return folder


def write_table(rows: list[list[str]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def rows(title: str, name: Callable[[str], str]) -> list[list[str]]:
    return [["notes", title, "species"], *([f"{name(each)}?", name(each), label] for each, label in PAIRS)]


PAIRS = list(zip(NAMES, LABELS, strict=True))
ONE_HOT = [
    ["filename", " cats", " dogs"],
    *([each + ".jpg", f" {int(x == 'cats')}", f" {int(x == 'dogs')}"] for each, x in PAIRS),
]
UPLOADS = [{"image": f"/data/upload/1/89abcdef-{name.rpartition('/')[2]}.jpg?d=1", "id": 1} for name in NAMES]
TASKS = [
    {"data": {"image": row["image"]}, "annotations": [{"result": [{"value": {"choices": [label]}}]}]}
    for row, label in zip(UPLOADS, LABELS, strict=True)
]
TABLES = {
    "names.csv": write_table(rows("image", lambda name: f"{name}.jpg")),
    "semicolons.csv": write_table(rows("image", lambda name: f"{name}.jpg"), ";"),
    "tabs.tsv": write_table(rows("image", lambda name: f"{name}.jpg"), "\t"),
    "stems.csv": write_table(rows("id", lambda name: name)),
    "capitals.csv": write_table(rows("Image Name", lambda name: f"{name}.JPG".upper())),
    "windows.csv": write_table(rows("path", lambda name: f"C:\\me\\{name}.jpg".replace("/", "\\"))),
    "one_hot.csv": write_table(ONE_HOT),
    "names.json": json.dumps({f"{name}.jpg": label for name, label in PAIRS}),
    "min.json": json.dumps(
        [{**row, "choice": label} for row, label in zip(UPLOADS, LABELS, strict=True)], ensure_ascii=False
    ),
    "tasks.json": json.dumps(TASKS),
    "lines.jsonl": "\n".join(json.dumps({"image": name, "label": label}) for name, label in PAIRS),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", TABLES)
def test_table_is_read(name: str, encoding: str, images: Path, tmp_path: Path) -> None:
    table = tmp_path / name
    table.write_text(TABLES[name], encoding=encoding)
    found = read_labels(table, images, LabelColumns())
    assert found.labels == {f"{each}.jpg": label for each, label in PAIRS}
    assert not found.missing


@given(labels=st.lists(CELLS, min_size=3, max_size=3))
def test_any_class_name_is_written_and_read_again(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for number in range(3):
        (folder / f"{number}.jpg").touch()
    table = folder / "table.csv"
    header = [["file", "label", "x"]]
    table.write_text(write_table([*header, *([f"{number}.jpg", labels[number], ""] for number in range(3))]))
    write_metadata(folder, read_labels(table, folder, LabelColumns()))
    metadata = read_metadata(folder)
    assert metadata is not None
    assert len(metadata.classes) == len(set(metadata.labels))


@pytest.mark.parametrize("empty", [";", "", " ; ", ";;"])
def test_empty_rows_of_a_spreadsheet_are_ignored(empty: str, images: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"image;label\nb.jpg;cats\n{empty}\n{empty}\n")
    found = read_labels(table, images, LabelColumns())
    assert found.labels == {"b.jpg": "cats"}
    assert not found.missing


def test_blank_lines_before_the_titles_are_ignored(images: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n \nimage;label\nb.jpg;cats\nc.jpg;dogs\nIMG 1.jpg;\n")
    with pytest.raises(UserError, match=r"table.csv, line 6: expected one class, found an empty cell"):
        read_labels(table, images, LabelColumns())
    table.write_text("\n \nimage;label\nb.jpg;cats\n")
    assert read_labels(table, images, LabelColumns()).labels == {"b.jpg": "cats"}


@pytest.mark.parametrize(
    ("name", "columns"), [("one_hot.csv", ("filename", "cats", "dogs")), ("min.json", ("image", "choice"))]
)
def test_result_names_the_used_columns(
    name: str, columns: tuple[str, ...], images: Path, tmp_path: Path
) -> None:
    table = tmp_path / name
    table.write_text(TABLES[name])
    assert read_labels(table, images, LabelColumns()).columns == columns


def test_other_encodings_name_the_format_of_excel(images: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("image;label\nb.jpg;Käfer\n", encoding="cp1252")
    with pytest.raises(UserError, match=r"found the byte 0xe4 at position 19; .* Excel calls 'CSV UTF-8'"):
        read_labels(table, images, LabelColumns())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("image,label\nb.jpg,cats\nb.jpg,dogs\n", "line 3: b.jpg has the classes 'cats' and 'dogs'"),
        ("image,label\nb.jpg,\n", "line 2: expected one class, found an empty cell"),
        ("image,cats,dogs\nb.jpg,1,1\n", "line 2: expected one class, found 2 classes"),
        ("image,width,height\nb.jpg,3,4\n", "Set --label-column to one of them: 'width', 'height'"),
        ("image,label\nnone.jpg,cats\n", "no column has names of images"),
        ("", "expected a line with the titles"),
    ],
)
def test_error_names_the_problem(table: str, message: str, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(table)
    with pytest.raises(UserError, match=message):
        read_labels(file, images, LabelColumns())


def test_invalid_class_name_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").touch()
    with pytest.raises(UserError):
        write_metadata(tmp_path, LabelledFiles({"1.jpg": "a\nb"}, (), ()))
    assert [path.name for path in tmp_path.iterdir()] == ["1.jpg"]


JSON_ROW = '{"image": "b.jpg", "label": "cats"}'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", 'image,label\n"b.jpg,cats\n', "can't read this table: unexpected end of data"),
        ("t.xlsx", "", "this is a spreadsheet; save its table as a CSV file first"),
        ("t.parquet", "", "expected a table with the suffix .csv, .tsv, .txt, .json or .jsonl"),
        ("t.json", "[1]", "expected a list of objects, such as"),
        (
            "t.json",
            f"[{JSON_ROW},\n{JSON_ROW},]",
            r"line 2 column \d+ .*one object per line needs the suffix",
        ),
        (
            "t.json",
            f'[{JSON_ROW},\n\n{{"image": "c.jpg", "label": null}}]',
            "json, item 2: expected one class",
        ),
        (
            "t.jsonl",
            f'{JSON_ROW}\n\n{{"image": "c.jpg", "label": null}}',
            "jsonl, line 3: expected one class",
        ),
        ("t.jsonl", f'{JSON_ROW}\n\n{{"image": 1\n', "line 3, column 12: Expecting ',' delimiter"),
        ("t.jsonl", f"{JSON_ROW}\n1\n", "line 2: expected an object"),
    ],
)
def test_error_of_a_file_names_its_place(
    name: str, text: str, message: str, images: Path, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_labels(file, images, LabelColumns())


@pytest.mark.parametrize("prefix", ["", "./", "C:\\data\\", "/home/x/data/", "https://x.org/"])
@pytest.mark.parametrize("suffix", [".jpg", ""])
def test_image_of_another_folder_with_the_same_name_is_missing(
    prefix: str, suffix: str, tmp_path: Path
) -> None:
    for name in ("test/1.jpg", "test/2.jpg", "3.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    names = [f"{prefix}{name}{suffix}" for name in ("train/1", "test/2", "3", "more/3")]
    table = tmp_path / "table.csv"
    table.write_text(write_table([["image", "label"], *([name, name] for name in names)]))
    files = read_labels(table, tmp_path, LabelColumns())
    assert files.labels == {"test/2.jpg": names[1], "3.jpg": names[2]}
    assert files.missing == (f"line 2: {names[0]!r}", f"line 5: {names[3]!r}")


@pytest.mark.parametrize("prefix", ["", "/home/x/data/"])
def test_image_of_a_folder_beside_that_of_the_images_is_missing(prefix: str, tmp_path: Path) -> None:
    images = tmp_path / "test"
    images.mkdir()
    for name in ("1", "2", "3"):
        Image.new("RGB", (4, 4)).save(images / f"{name}.jpg")
    names = [f"{prefix}{name}.jpg" for name in ("train/1", "test/2")]
    table = tmp_path / "table.csv"
    table.write_text(write_table([["image", "label"], *([name, name] for name in [*names, "3.jpg"])]))
    files = read_labels(table, images, LabelColumns())
    assert files.labels == {"2.jpg": names[1], "3.jpg": "3.jpg"}
    assert files.missing == (f"line 2: {names[0]!r}",)


def test_one_line_of_json_lines_is_one_image(images: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    file.write_text(JSON_ROW)
    assert read_labels(file, images, LabelColumns()).labels == {"b.jpg": "cats"}


def test_command_reports_missing_images_and_keeps_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.jpg").touch()
    table = tmp_path / "labels.csv"
    table.write_text("id,breed\n1,pug\n2,husky\n")
    assert command([str(table)]) == 2
    assert "1 row has no image, or several" in capsys.readouterr().err
    assert not (tmp_path / "metadata.csv").exists()
    assert command([str(table), "--on-error", "skip"]) == 0
    assert (tmp_path / "metadata.csv").read_text() == "file_name,label\n1.jpg,pug\n"
    assert command([str(table), "--on-error", "skip"]) == 2
    assert "this file exists" in capsys.readouterr().err
