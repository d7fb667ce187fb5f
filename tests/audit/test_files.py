"""The files of an audit: names of strangers' files are escaped, and fixes are reversible."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppcls.audit.files import Fix, read_table, render_gallery, suggest_fixes, write_audit, write_table
from ppcls.audit.findings import audit
from ppcls.audit.fixes import apply_fixes, read_fixes, revert_fixes
from ppcls.audit.images import SIDE, Pictures
from ppcls.audit.neighbours import find_neighbours
from ppcls.errors import UserError

HOSTILE = [
    "a/<script>alert(1)</script>.jpg",
    "a/\"onload='x'.jpg",
    "a/\x1b[31m\n.jpg",
    os.fsdecode(b"a/\xff.jpg"),
]


def _hostile_audit(names: list[str]) -> tuple[Pictures, str]:
    count = 24
    rng = np.random.default_rng(0)
    copies = rng.normal(size=(count, SIDE * SIDE)).astype(np.float32)
    copies /= np.linalg.norm(copies, axis=1, keepdims=True)
    vectors = rng.normal(size=(count, 8)).astype(np.float32)
    files = [*names, *(f"a/{number}.jpg" for number in range(count - len(names)))]
    hashes: list[bytes | None] = [b"same"] * len(names) + [
        bytes([number]) for number in range(count - len(names))
    ]
    labels = np.arange(count) % 2
    pictures = Pictures(files, labels, ("<b>a</b>", "=1+1"), ["train"] * count, hashes, copies)
    result = audit(pictures, find_neighbours(vectors), None)
    return pictures, render_gallery(result, "<img src=x>", lambda _position: None)


def test_hostile_names_are_escaped_in_the_gallery() -> None:
    _, text = _hostile_audit(HOSTILE)
    assert "<script>alert" not in text
    assert "<b>a" not in text
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert 'data-copy="a/&#34;onload' in text
    assert "a/\\udcff.jpg" in text
    text.encode("utf-8")


@given(st.lists(st.lists(st.text(), min_size=2, max_size=4), max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tables_keep_every_text_and_contain_no_formula(tmp_path: Path, rows: list[list[str]]) -> None:
    rows = [[os.fsdecode(cell.encode("utf-8", "surrogatepass")) for cell in row] for row in rows]
    write_table(tmp_path / "table.csv", rows)
    data = (tmp_path / "table.csv").read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")  # Excel then reads UTF-8
    assert read_table(data) == rows
    for row in csv.reader(io.StringIO(data.decode("utf-8-sig", "surrogateescape"), newline="")):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-8", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_fixes_are_read_as_a_spreadsheet_saves_them(tmp_path: Path, delimiter: str, encoding: str) -> None:
    path = tmp_path / "fixes.csv"
    lines = [["action", "file", "label"], ["relabel", "Käfer/1, 2.jpg", "Läuse"]]
    with path.open("w", encoding=encoding, newline="") as stream:
        csv.writer(stream, delimiter=delimiter).writerows(lines)
    assert read_fixes(path) == [Fix("relabel", "Käfer/1, 2.jpg", "Läuse", "")]


@pytest.mark.parametrize(("file", "label"), [("train/cat/1.jpg", "Läuse"), ("train/Läuse/1.jpg", "dog")])
def test_fixes_in_another_encoding_are_explained(
    pictures: Path, tmp_path: Path, file: str, label: str
) -> None:
    path = tmp_path / "fixes.csv"
    path.write_text(f"action;file;label\nrelabel;{file};{label}\n", encoding="cp1252")
    with pytest.raises(UserError, match="the table is not in UTF-8: save it as what Excel calls 'CSV UTF-8'"):
        apply_fixes(pictures, read_fixes(path), tmp_path / "out")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for name in ("train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg", "val/cat/1.jpg", "val/dog/=x.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def _tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_fixes_move_and_relabel_and_are_reverted(pictures: Path, tmp_path: Path) -> None:
    before = _tree(pictures)
    fixes = [
        Fix("relabel", "train/cat/1.jpg", "dog", ""),  # this name exists there
        Fix("remove", "val/dog/=x.jpg", "", ""),
        Fix("remove", "train/cat/2.jpg", "", ""),
    ]
    write_table(
        tmp_path / "fixes.csv", [["action", "file", "label"], *([f.action, f.file, f.label] for f in fixes)]
    )
    assert read_fixes(tmp_path / "fixes.csv") == fixes
    journal, relabelled, removed = apply_fixes(pictures, fixes, tmp_path / "out")
    assert (relabelled, removed) == (1, 2)
    after = _tree(pictures)
    assert after["train/dog/1-2.jpg"] == "train/cat/1.jpg"
    assert after["train/dog/1.jpg"] == "train/dog/1.jpg"
    assert _tree(tmp_path / "pictures-removed") == {
        name: name for name in ("val/dog/=x.jpg", "train/cat/2.jpg")
    }
    (tmp_path / "pictures-removed" / "train" / "cat" / "2.jpg").rename(
        pictures / "train/cat/2.jpg"
    )  # by hand
    assert revert_fixes(journal) == 2
    assert _tree(pictures) == before


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("remove,../x.jpg,", "expected a path below"),
        ("remove,/etc/passwd,", "expected a path below"),
        ("remove,train/cat/9.jpg,", "no such picture"),
        ("relabel,train/cat/1.jpg,dgo", "no class 'dgo'.*dog"),
        ("relabel,train/cat/1.jpg,cat", "is in class cat already"),
        ("relabel,train/cat/1.jpg,", "needs a class"),
        ("delete,train/cat/1.jpg,", "expected the action"),
        ("remove,train/cat/1.jpg,\nremove,train/cat/1.jpg,", "listed twice"),
    ],
)
def test_invalid_fixes_change_nothing(pictures: Path, tmp_path: Path, line: str, reason: str) -> None:
    before = _tree(pictures)
    fixes = tmp_path / "fixes.csv"
    fixes.write_text(f"action,file,label\nremove,train/cat/2.jpg,\n{line}\n")
    with pytest.raises(UserError, match=reason):
        apply_fixes(pictures, read_fixes(fixes), tmp_path / "out")
    assert _tree(pictures) == before


def test_suggested_fixes_name_each_picture_once(tmp_path: Path) -> None:
    count = 24
    rng = np.random.default_rng(0)
    copies = rng.normal(size=(count, SIDE * SIDE)).astype(np.float32)
    files = [f"{number % 2}/{number}.png" for number in range(count)]
    hashes: list[bytes | None] = [b"same"] * 4 + [bytes([number]) for number in range(count - 4)]
    pictures = Pictures(files, np.arange(count) % 2, ("0", "1"), ["train", "val"] * 12, hashes, copies)
    probabilities = np.full((count, 2), 0.5, np.float32)
    probabilities[:, 0] = np.where(np.arange(count) % 2, 0.1, 0.9)
    probabilities[5] = [0.99, 0.01]
    probabilities[:, 1] = 1 - probabilities[:, 0]
    result = audit(pictures, find_neighbours(rng.normal(size=(count, 8)).astype(np.float32)), probabilities)
    fixes = list(suggest_fixes(result))
    assert len({fix.file for fix in fixes}) == len(fixes)
    assert Fix("relabel", "1/5.png", "0", result.of_kind("label")[0].text) in fixes
    write_audit(result, "pictures", tmp_path, lambda _: np.zeros((4, 4, 3), np.uint8))
    assert cv2.haveImageReader(str(tmp_path / "audit.html")) is False
    assert {path.name for path in tmp_path.iterdir()} == {"audit.html", "audit.csv", "fixes.csv"}
