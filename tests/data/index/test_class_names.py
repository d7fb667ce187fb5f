from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ppcls.data.index.class_names import (
    changed_class_names,
    check_labels,
    describe_other_classes,
    read_class_names,
    write_class_names,
)
from ppcls.errors import UserError


def test_read_class_names_sorts_by_id(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("\ufeff2 café\r\n\r\n0 tench, Tinca tinca\r\n1 great white shark  \r\n", encoding="utf-8")
    assert read_class_names(path, 3) == ("tench, Tinca tinca", "great white shark", "café")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0 a\nbee b\n2 c\n", ", line 2: expected 'id name', where id is a whole number, got 'bee' as id"),
        (
            "0 a\n1\n2 c\n",
            ", line 2: expected 'id name', got no name for class 1",
        ),
        ("0 a\n-1 b\n2 c\n", ", line 2: expected 'id name', where id is a whole number, got '-1' as id"),
        ("0 a\n1 b\n2 c\n3 d\n", ", line 4: class 3 is not in 0..2; Arch.class_num is 3"),
        ("0 a\n1 b\n1 c\n", ", line 3: class 1 already has a name, 'b'"),
        ("0 a\n\n", ": has names for 1 of 3 classes (Arch.class_num); add a line for class 1, 2"),
        ("", ": has names for 0 of 3 classes (Arch.class_num); add a line for class 0, 1, 2"),
    ],
)
def test_read_class_names_names_the_wrong_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "names.txt"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        read_class_names(path, 3)
    assert str(raised.value) == f"{path}{error}"


def test_read_class_names_counts_wrong_lines(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("x y\n" * 25)
    with pytest.raises(UserError) as raised:
        read_class_names(path, 25)
    lines = str(raised.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 15 more lines"


def test_read_class_names_reports_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="gone: no such file; expected lines of 'id name'"):
        read_class_names(tmp_path / "gone", 3)
    with pytest.raises(UserError, match="can't read this class_id_map_file: Is a directory"):
        read_class_names(tmp_path, 3)
    (tmp_path / "latin").write_bytes(b"0 caf\xe9\n")
    with pytest.raises(UserError, match="latin: expected UTF-8 text"):
        read_class_names(tmp_path / "latin", 3)


def test_changed_class_names_lists_changes(tmp_path: Path) -> None:
    path = tmp_path / "label_list.txt"
    assert changed_class_names(path, ("cat", "dog")) == ""
    write_class_names(path, ("big cat", "dog", "emu"))
    assert changed_class_names(path, ("big cat", "dog", "emu")) == ""
    assert changed_class_names(path, ("dog", "emu", "zcat")) == (
        "0 was 'big cat' and is now 'dog', 1 was 'dog' and is now 'emu', 2 was 'emu' and is now 'zcat'"
    )
    assert changed_class_names(path, ("cat", "dog")) == ""  # other weights, which is an error of its own
    assert changed_class_names(path, ()) == ""


def test_check_labels_accepts_labels_in_range() -> None:
    check_labels(np.array([0, 2, 1]), str, 3)
    check_labels(np.array([], np.int64), str, 3)


def test_check_labels_shows_the_first_ten() -> None:
    with pytest.raises(UserError) as caught:
        check_labels(np.array([-1, 0] * 12), lambda position: f"sample {position}", 1)
    lines = str(caught.value).splitlines()
    assert lines[1] == "sample 2: label -1 is not in 0..0; Arch.class_num is 1"
    assert len(lines) == 11
    assert lines[-1] == "… and 2 more samples"


def test_describe_other_classes_names_added_and_removed_ones(tmp_path: Path) -> None:
    file = tmp_path / "label_list.txt"
    assert describe_other_classes(file, ("cats",)) == ""
    write_class_names(file, ("cats", "dogs"))
    assert describe_other_classes(file, ("cats", "mice")) == ""
    assert describe_other_classes(file, ("x", "y")) == ""
    changes = "(added x, y; removed cats, dogs)"
    assert describe_other_classes(file, ("x", "y"), folders=True).endswith(changes)
    assert describe_other_classes(file, ("cats", "y"), folders=True) == ""
    text = describe_other_classes(file, ("birds", "cats", "mice"))
    assert text == "2 classes before, 3 now (added birds, mice; removed dogs; with another label cats)"


def test_describe_other_classes_names_moved_ones(tmp_path: Path) -> None:
    write_class_names(tmp_path / "label_list.txt", ("ant", "bee", "cat"))
    text = describe_other_classes(tmp_path / "label_list.txt", ("bee", "cat", "zebra"))
    assert text == ("3 classes before, 3 now (added zebra; removed ant; with another label bee, cat)")
