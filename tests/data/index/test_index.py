"""Lists and class folders of images, valid and invalid."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ppcls.data.images.paths import find_images
from ppcls.data.index.base import Dataset
from ppcls.data.index.class_names import changed_class_names, list_class_folders, read_class_names
from ppcls.data.index.files import FileIndex, read_named_files
from ppcls.data.index.files import read_list as read_list_file
from ppcls.data.index.folders import ImageFolderDataset
from ppcls.data.index.image_lists import ImageNetDataset, VeriWild
from ppcls.data.index.persons import DukeMTMC, Market1501
from ppcls.data.index.protocol import cameras_of, describe_index
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError

CHAIN = (DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage())


def file_index(dataset: Dataset, class_num: int) -> FileIndex:
    index = dataset.read(class_num)
    assert isinstance(index, FileIndex)
    return index


def read_list(folder: Path, content: str | bytes, delimiter: str = " ", class_num: int = 10) -> FileIndex:
    listing = folder / "list.txt"
    listing.write_bytes(content if isinstance(content, bytes) else content.encode())
    dataset = ImageNetDataset(
        image_root=str(folder), cls_label_path=str(listing), delimiter=delimiter, transform_ops=CHAIN
    )
    return file_index(dataset, class_num)


def read_folder(root: Path, class_num: int, **options: Any) -> FileIndex:
    return file_index(ImageFolderDataset(image_root=str(root), transform_ops=CHAIN, **options), class_num)


def pairs(index: FileIndex) -> list[tuple[str, int]]:
    root = os.fsencode(index.root) + b"/"
    paths = [index.path(position) for position in range(len(index))]
    assert all(path.startswith(root) for path in paths)
    return [
        (os.fsdecode(path[len(root) :]), int(label)) for path, label in zip(paths, index.labels, strict=True)
    ]


def wrong(folder: Path, content: str | bytes, **options: str | int) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_list(folder, content, **options)  # type: ignore[arg-type]
    listing = f"{folder / 'list.txt'}"
    return [line.removeprefix(listing) for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("content", "delimiter", "expected"),
    [
        ("a.jpg 0\nb/c.jpg 9\n", " ", [("a.jpg", 0), ("b/c.jpg", 9)]),
        ("a.jpg 0", " ", [("a.jpg", 0)]),
        ("my cat.jpg 3\n", " ", [("my cat.jpg", 3)]),
        ("a  b.jpg   3  \n", " ", [("a  b.jpg", 3)]),
        ("a.jpg 0\r\n\r\nb.jpg 1\r\n", " ", [("a.jpg", 0), ("b.jpg", 1)]),
        ("\n  \na.jpg 0\n\n", " ", [("a.jpg", 0)]),
        ("a b.jpg\t3\n", "\t", [("a b.jpg", 3)]),
        ("a,b.jpg,3\n", ",", [("a,b.jpg", 3)]),
        ("a.jpg, 3\n", ",", [("a.jpg", 3)]),
        ("a::b.jpg::3\n", "::", [("a::b.jpg", 3)]),
        ('Müller\'s "cat" 猫.jpg 4\n', " ", [('Müller\'s "cat" 猫.jpg', 4)]),
        ("a.jpg 007\n", " ", [("a.jpg", 7)]),
        ("a..b/..c.jpg 1\n", " ", [("a..b/..c.jpg", 1)]),
        ("\ufeffa.jpg 1\n", " ", [("a.jpg", 1)]),
        (b"\xff\xe9.jpg 2\n", " ", [("\udcff\udce9.jpg", 2)]),
        ("a\u2028b.jpg 1\n", " ", [("a\u2028b.jpg", 1)]),
        ("a\x0cb.jpg 1\n", " ", [("a\x0cb.jpg", 1)]),
    ],
)
def test_read_list_returns_paths_and_labels(
    tmp_path: Path, content: str | bytes, delimiter: str, expected: list[tuple[str, int]]
) -> None:
    assert pairs(read_list(tmp_path, content, delimiter)) == expected


@pytest.mark.parametrize("linked", [False, True])
def test_absolute_paths_in_image_root_are_accepted(tmp_path: Path, linked: bool) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    root = tmp_path / "link" if linked else folder
    if linked:
        root.symlink_to(folder)
    lines = [f"{folder}/a b.jpg 0", f"{root}//c/d.jpg 1", "e.jpg 2"]
    assert pairs(read_list(root, "\n".join(lines))) == [("a b.jpg", 0), ("c/d.jpg", 1), ("e.jpg", 2)]


def test_image_root_can_be_the_root_of_the_disk(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text(f"{tmp_path}/a.jpg 0\n/b.jpg 1\n")
    dataset = ImageNetDataset(image_root="/", cls_label_path=str(listing), transform_ops=CHAIN)
    index = file_index(dataset, 2)
    assert [index.name(position) for position in range(2)] == [f"{tmp_path}/a.jpg", "/b.jpg"]
    assert index.find({(f"{tmp_path}/a.jpg", "")}) == [0]


def test_absolute_paths_outside_image_root_name_the_folder(tmp_path: Path) -> None:
    for path in ("/etc/a.jpg", f"{tmp_path}-2/a.jpg", f"{tmp_path}"):
        assert wrong(tmp_path, f"{path} 1\n") == [
            f", line 1: path '{path}' leads out of image_root ({tmp_path}/); set image_root to a folder that "
            "contains it"
        ]
    (line,) = wrong(tmp_path, f"{tmp_path}/../a.jpg 1\n")
    assert line == ", line 1: path '../a.jpg' leads out of image_root; expected a path below image_root"


def test_a_tab_can_be_written_with_a_backslash(tmp_path: Path) -> None:
    assert pairs(read_list(tmp_path, "a b.jpg\t3\n", r"\t")) == [("a b.jpg", 3)]


def test_file_index_where_is_the_line(tmp_path: Path) -> None:
    index = read_list(tmp_path, "a.jpg 0\n\nlonger/name.jpg 1\n")
    assert len(index) == 2
    assert index.where(1) == f"{tmp_path / 'list.txt'}, line 3"
    assert index.path(1) == os.fsencode(tmp_path / "longer/name.jpg")
    assert index.labels.dtype.name == "int64"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("a.jpg", "expected 'path label', got no label after ' '; is the delimiter right?"),
        (
            "a.jpg\t1",
            "expected 'path label', got no label after ' '; this line has a tab before the label: "
            'set delimiter: "\\t"',
        ),
        (
            "a,b.jpg,7",
            "expected 'path label', got no label after ' '; this line has a comma before the label: "
            'set delimiter: ","',
        ),
        (" 3", "expected 'path label', got no label after ' '; is the delimiter right?"),
        ("a.jpg b.jpg", "expected a whole number as label, got 'b.jpg'; number the classes from 0"),
        ("a.jpg 1.0", "expected a whole number as label, got '1.0'; number the classes from 0"),
        ("a.jpg 1e0", "expected a whole number as label, got '1e0'; number the classes from 0"),
        ("a.jpg --3", "expected a whole number as label, got '--3'; number the classes from 0"),
        ("a.jpg -", "expected a whole number as label, got '-'; number the classes from 0"),
        ("a.jpg ³", "expected a whole number as label, got '³'; number the classes from 0"),
        ("a.jpg ٣", "expected a whole number as label, got '٣'; number the classes from 0"),
        ("a.jpg 1_0", "expected a whole number as label, got '1_0'; number the classes from 0"),
        ("a.jpg 10", "label 10 is not in 0..9; Arch.class_num is 10"),
        ("a.jpg -1", "label -1 is not in 0..9; Arch.class_num is 10"),
        (f"a.jpg {'9' * 30}", f"label {'9' * 30} is not in 0..9; Arch.class_num is 10"),
        ("../a.jpg 1", "path '../a.jpg' leads out of image_root; expected a path below image_root"),
        ("a/../../b.jpg 1", "path 'a/../../b.jpg' leads out of image_root; expected a path below image_root"),
        ("a/.. 1", "path 'a/..' leads out of image_root; expected a path below image_root"),
        ("a\0.jpg 1", "expected a path without zero bytes, found one"),
    ],
)
def test_read_list_names_the_wrong_line(tmp_path: Path, line: str, text: str) -> None:
    assert wrong(tmp_path, f"good.jpg 0\n\n{line}\n") == [f", line 3: {text}"]


def test_read_list_rejects_very_long_label(tmp_path: Path) -> None:
    (line,) = wrong(tmp_path, f"a.jpg {'9' * 9999}\n")
    assert line.startswith(", line 1: label 999")


def test_read_list_error_names_the_delimiter(tmp_path: Path) -> None:
    assert wrong(tmp_path, "a.jpg 1\n", delimiter="\t") == [
        ", line 1: expected 'path\tlabel', got no label after '\\t'; this line has a space before the label: "
        'set delimiter: " "'
    ]


def test_read_list_shows_ten_wrong_lines(tmp_path: Path) -> None:
    lines = [f"{number}.jpg {'x' if number % 2 else 0}" for number in range(1, 31)]
    found = wrong(tmp_path, "\n".join(lines))
    assert [each.split(":")[0] for each in found[:10]] == [f", line {number}" for number in range(1, 20, 2)]
    assert found[10:] == ["… and 5 more lines"]
    assert len(wrong(tmp_path, "\n".join(lines[:20]))) == 10


def test_read_list_rejects_empty_list(tmp_path: Path) -> None:
    for content in ("", "\n\n  \n"):
        assert wrong(tmp_path, content) == [": the list is empty; expected lines of 'path label'"]


def test_read_list_reports_missing_files(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    dataset = ImageNetDataset(image_root=str(tmp_path), cls_label_path=str(listing), transform_ops=CHAIN)
    with pytest.raises(UserError) as caught:
        dataset.read(10)
    assert str(caught.value) == f"{listing}: no such list file; expected lines of 'path label'"
    listing.mkdir()
    with pytest.raises(UserError) as caught:
        dataset.read(10)
    assert str(caught.value) == f"{listing}: can't read this list file: Is a directory"
    with pytest.raises(UserError) as caught:
        dataset.model_copy(update={"image_root": str(tmp_path / "none")}).read(10)
    assert (
        str(caught.value)
        == f"{tmp_path / 'none'}: no such folder; set image_root to the folder of the images"
    )
    for name, reason in {
        "mnist.npz": ", found a file of arrays",
        "train-images-idx3-ubyte.gz": "; IdxDataset reads it",
    }.items():
        (tmp_path / name).write_bytes(b"\0\n \n")
        with pytest.raises(UserError, match=f"^.*: expected a list file with lines of 'path label'{reason}"):
            dataset.model_copy(update={"cls_label_path": str(tmp_path / name)}).read(10)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="this is a file, not a folder of images"):
        dataset.model_copy(update={"image_root": str(tmp_path / "file")}).read(10)


NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="/"), min_size=1, max_size=9
)


@given(
    st.lists(
        st.tuples(NAMES.filter(lambda name: name not in ("..", "\ufeff")), st.integers(0, 9)), min_size=1
    )
)
def test_read_list_keeps_any_file_name(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("list")
    samples = [(name.strip("\ufeff") or "x", label) for name, label in samples]
    assert pairs(read_list(folder, "".join(f"{name} {label}\n" for name, label in samples))) == samples


@given(st.binary(max_size=60))
def test_read_list_any_bytes_reads_or_raises(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("list")
    try:
        index = read_list(folder, content)
    except UserError:
        return
    assert all(b"\0" not in index.path(position) for position in range(len(index)))


def test_read_folder_labels_sorted_subfolders(tmp_path: Path) -> None:
    for name in (
        "cat/2.JPG",
        "cat/1.jpg",
        "ant/deep/er/x.png",
        "ant/b.txt",
        "Bee's é/i.webp",
        ".hidden/z.jpg",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "loose.jpg").touch()
    index = read_folder(tmp_path, 3)
    assert list_class_folders(tmp_path) == ("Bee's é", "ant", "cat")
    assert pairs(index) == [
        ("Bee's é/i.webp", 0),
        ("ant/deep/er/x.png", 1),
        ("cat/1.jpg", 2),
        ("cat/2.JPG", 2),
    ]
    assert index.where(0) == str(tmp_path)
    assert pairs(read_folder(tmp_path, 3, extensions=(".txt",))) == [("ant/b.txt", 1)]


def test_read_index_rejects_pipes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    os.mkfifo(tmp_path / "a" / "2.jpg")
    for follow_links in (False, True):
        with pytest.raises(UserError) as caught:
            read_folder(tmp_path, 1, follow_links=follow_links)
        assert str(caught.value) == f"{tmp_path}: {tmp_path}/a/2.jpg is not a regular file; remove it"
    assert wrong(tmp_path, "a/1.jpg 0\na/2.jpg 0\na/gone.jpg 0\na 0\n") == [
        f", line 2: {tmp_path}/a/2.jpg is not a regular file; remove it"
    ]


def test_read_folder_reports_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_folder(tmp_path, 2)
    assert str(caught.value) == f"{tmp_path}: expected one subfolder per class, found none"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError) as caught:
        read_folder(tmp_path, 3)
    assert str(caught.value).startswith(
        f"{tmp_path}: found 2 class folders, but Arch.class_num is 3; set it to 2, or to auto to count them. "
    )
    assert "--pretrained RUN and --output NEW" in str(caught.value)
    with pytest.raises(UserError) as caught:
        read_folder(tmp_path, 2, extensions=(".jpg", ".png"))
    assert str(caught.value) == f"{tmp_path}: no images; expected files that end in .jpg, .png"


@pytest.mark.hostile
def test_read_index_link_to_pipe_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a" / "1.jpg").symlink_to("../pipe")
    for follow_links in (False, True):
        with pytest.raises(UserError, match=r"a/1\.jpg is not a regular file; remove it"):
            read_folder(tmp_path, 1, follow_links=follow_links)


@pytest.mark.hostile
def test_read_list_pipe_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list.txt")
    with pytest.raises(UserError, match=r"list\.txt: can't read this list file: not a regular file"):
        read_list_file(tmp_path, tmp_path / "list.txt", " ")


@pytest.mark.hostile
def test_read_list_long_path_is_rejected(tmp_path: Path) -> None:
    (problem,) = wrong(tmp_path, f"a.jpg 0\n{'x' * 500_000} 0\n")
    shown = "x" * 80
    assert problem == f", line 2: a path of 500000 bytes, '{shown}'…; expected at most 4095 bytes"


def test_read_list_labels_of_unequal_length_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 0,1\nb.jpg 0,1,1\n")
    with pytest.raises(UserError, match="line 2: found labels of 3 classes, but line 1 has 2"):
        read_list_file(tmp_path, tmp_path / "list.txt", " ", labelled="per class")


@pytest.mark.hostile
def test_read_list_huge_list_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    (tmp_path / "list.txt").touch()
    os.truncate(tmp_path / "list.txt", 40 << 30)  # sparse
    with pytest.raises(UserError, match=r"list\.txt, line 1: longer than 64 MiB; is this a list file\?"):
        read_list_file(tmp_path, tmp_path / "list.txt", " ")


@pytest.mark.hostile
def test_read_list_one_long_path_among_many_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppcls.data.index.arrays.parse_list._MAX_INDEX", 5000)
    (problem,) = wrong(tmp_path, f"a.jpg 0\n{'x' * 2000} 0\nb.jpg 0\n")
    assert problem == (
        ", line 2: a path of 2000 bytes is too long for a list of 3 images: expected at most 1666 bytes; "
        "shorten the path"
    )


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xffa", r"'\udcffa'"),
        (b"a\nb", r"'a\nb'"),
        ("a\u2028b".encode(), r"'a\u2028b'"),
        (b"a\x0bb", r"'a\x0bb'"),
        (b"a\x1cb", r"'a\x1cb'"),
        (b"trail ", "'trail '"),
    ],
)
def test_list_class_folders_unwritable_name_is_rejected(tmp_path: Path, name: bytes, shown: str) -> None:
    for folder in (name, b"trail"):
        (tmp_path / os.fsdecode(folder)).mkdir()
    with pytest.raises(UserError) as caught:
        list_class_folders(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: class folder {shown}: expected a name in UTF-8 without")


def test_labels_with_gaps_are_renumbered(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg 70\nb.jpg 3\nc.jpg 70\n")
    paths = {"image_root": str(tmp_path), "cls_label_path": str(tmp_path / "list.txt")}
    dataset = ImageNetDataset(**paths, relabel=True, transform_ops=CHAIN)
    assert file_index(dataset, 2).labels.tolist() == [1, 0, 1]
    with pytest.raises(UserError, match=r"has 2 different labels, but Arch\.class_num is 1"):
        dataset.read(1)


def write_persons(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True)
    for name in names:
        Image.new("RGB", (4, 8)).save(folder / name)


def test_names_of_persons_hold_identity_and_camera(tmp_path: Path) -> None:
    folder = tmp_path / "market1501/Market-1501-v15.09.15"
    names = ("0007_c3s1_000001_00.jpg", "0002_c1s1_000001_00.jpg", "-1_c1s1_000001_00.jpg")
    write_persons(folder / "bounding_box_train", *names)
    write_persons(folder / "query", *names)
    training, query = (
        Market1501(transform_ops=CHAIN, image_root=str(tmp_path), cls_label_path=part).read(count)
        for part, count in (("bounding_box_train", 2), ("query", None))
    )
    assert training.labels.tolist() == [0, 1]
    assert query.labels.tolist() == [2, 7]
    for index in (training, query):
        assert cameras_of(index).tolist() == [1, 3]
        assert Path(index.name(1)).name == names[0]
        assert index.read(1)
    spec = Market1501(transform_ops=CHAIN, image_root=str(tmp_path), cls_label_path="query")
    with pytest.raises(UserError, match="2 identities with labels up to 7, but the head's class_num is 2"):
        spec.read(2)
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="no images with identities"):
        spec.model_copy(update={"cls_label_path": "empty"}).read(None)


def test_third_column_of_veri_wild_is_the_camera(tmp_path: Path) -> None:
    Image.new("RGB", (4, 8)).save(tmp_path / "a.jpg")
    listing = tmp_path / "list.txt"
    spec = VeriWild(transform_ops=CHAIN, image_root=str(tmp_path), cls_label_path=str(listing))
    listing.write_text("a.jpg 5 17\na.jpg 6 2\n")
    index = spec.read(None)
    assert (index.labels.tolist(), cameras_of(index).tolist()) == ([5, 6], [17, 2])
    listing.write_text("a.jpg 5\na.jpg 6\n")
    assert cameras_of(spec.read(None)) is None
    listing.write_text("a.jpg 5 1\na.jpg 6\n")
    with pytest.raises(UserError, match=r"list.txt, line 2: expected a camera in all lines or in none"):
        spec.read(None)
    plain = ImageNetDataset(transform_ops=CHAIN, image_root=str(tmp_path), cls_label_path=str(listing))
    assert Path(plain.read(None).name(0)).name == "a.jpg 5", "other data sets accept blanks in paths"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "a.jpg" + " " * 200_000 + "b",
            "expected a whole number as label, got 'b'; number the classes from 0",
        ),
        ("a.jpg " + "1" * 200_000, "expected a label >= 0"),
        ("a.jpg 1 " + "1" * 200_000, "camera 1{18}: expected at most 999999999"),
        ("a.jpg 1 9999999999", "camera 9999999999: expected at most 999999999"),
    ],
    ids=["blanks", "label", "long camera", "camera"],
)
def test_invalid_camera_is_rejected_in_linear_time(tmp_path: Path, line: str, reason: str) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text(line)
    with pytest.raises(UserError, match=f"line 1: {reason}"):
        read_list_file(tmp_path, listing, " ", labelled="with cameras")


@pytest.mark.hostile
@pytest.mark.parametrize("name", [f"1_c{'9' * 100}.jpg", f"{'9' * 100}_c1.jpg"])
def test_name_with_a_huge_number_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match="expected at most 18 digits for identity and camera"):
        read_named_files(tmp_path, DukeMTMC.pattern, None, relabel=True)


SYSTEM_FOLDERS = [
    *("@eaDir", "#recycle", "lost+found", ".thumbnails", "__MACOSX", "System Volume Information"),
    *("$RECYCLE.BIN", "$Recycle.Bin", "@Recycle", "found.000", "__pycache__"),
]


def test_folders_of_the_system_are_no_classes_and_have_no_images(tmp_path: Path) -> None:
    for name in ["a", "b", "recycled", *SYSTEM_FOLDERS]:
        for folder in (tmp_path / name, tmp_path / name / "@eaDir", tmp_path / name / ".hidden"):
            folder.mkdir()
            (folder / "x.jpg").touch()
    index = read_folder(tmp_path, 3)
    assert pairs(index) == [("a/x.jpg", 0), ("b/x.jpg", 1), ("recycled/x.jpg", 2)]
    assert [path.relative_to(tmp_path).as_posix() for path in find_images([tmp_path])] == [
        "a/x.jpg",
        "b/x.jpg",
        "recycled/x.jpg",
    ]
    (line,) = ImageFolderDataset(image_root=str(tmp_path), transform_ops=CHAIN).describe_ignored()
    assert line.startswith(f"{tmp_path}: ignored folders of the system: #recycle, $RECYCLE.BIN")


def test_names_that_differ_in_unicode_form_are_one_class(tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for name in (composed, decomposed, "zebra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").touch()
    assert list_class_folders(tmp_path) == (composed, "zebra")
    expected = [(f"{decomposed}/x.jpg", 0), (f"{composed}/x.jpg", 0), ("zebra/x.jpg", 1)]
    assert pairs(read_folder(tmp_path, 2)) == expected
    labels = [(path, 1 - label) for path, label in expected]
    assert pairs(read_folder(tmp_path, 2, class_names=("zebra", decomposed))) == labels
    listing = tmp_path / "names.txt"
    listing.write_text(f"0 zebra\n1 {decomposed}\n")
    assert read_class_names(listing, 2) == ("zebra", composed)
    assert changed_class_names(listing, ("zebra", composed)) == ""
    with pytest.raises(ValueError, match="more than once"):
        read_folder(tmp_path, 2, class_names=(composed, decomposed))


@pytest.mark.parametrize("width", [None, 3], ids=["class ids", "several labels"])
def test_a_data_set_is_identified_without_a_copy_of_its_labels(tmp_path: Path, width: int | None) -> None:
    count = 400_000
    labels = np.arange(count) % 7 if width is None else np.ones((count, width), np.float32)
    index = FileIndex(tmp_path, np.full(count, b"a.jpg"), labels, tmp_path / "list.txt")
    tracemalloc.start()
    text = describe_index(index)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < labels.nbytes / 10
    name = b"a.jpg\0"  # relative to the folder, which may move
    digest = hashlib.blake2b(labels.tobytes() + name * 1000, digest_size=6)
    assert text == f"{count} samples ({digest.hexdigest()})"
