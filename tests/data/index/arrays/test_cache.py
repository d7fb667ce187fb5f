"""Arrays of long lists and large folders are computed once per machine, and never from foreign files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from runs import GUARD

from ppcls.data.index.arrays import cache, parse_list, read, safe_folders
from ppcls.data.index.files import FileIndex, read_folder, read_list
from ppcls.data.index.folders import ImageFolderDataset
from ppcls.data.index.split import choose_validation
from ppcls.errors import UserError

LINES = 500


@pytest.fixture
def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Lets short lists be cached, and returns the list to which each parsed list is added."""
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(read, "CACHED_BYTES", 0)
    monkeypatch.setattr(cache, "SETTLED", -(10**12))
    calls: list[Path] = []
    parse = read.parse_list

    def count(listing: Path, *args: object) -> parse_list.ListArrays:
        calls.append(listing)
        return parse(listing, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(read, "parse_list", count)
    return calls


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    path = tmp_path / "images" / "list.txt"
    path.write_text("".join(f"n{at % 7}/{at}.jpg {at % 7}\n" for at in range(LINES)))
    return path


def load(listing: Path, class_num: int | None = None) -> FileIndex:
    return read_list(listing.parent, listing, " ", class_num)


def content(index: FileIndex) -> object:
    return index.paths.tolist(), index.labels.tolist(), None if index.lines is None else index.lines.tolist()


def stored(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.arrays") if path.is_file()]


def test_a_list_is_parsed_once_and_then_mapped(listing: Path, parsed: list[Path]) -> None:
    first = load(listing)
    (file,) = stored(listing.parent)
    second = load(listing, class_num=7)
    assert len(parsed) == 1
    assert content(first) == content(second)
    assert not second.paths.flags.writeable
    assert not second.paths.flags.owndata
    assert (
        file.stat().st_size
        < 1.2 * sum(array.nbytes for array in (second.paths, second.labels, second.lines)) + 512
    )


def test_a_short_list_is_not_cached(
    listing: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "CACHED_BYTES", 1 << 22)
    load(listing)
    assert stored(listing.parent.parent) == []


def test_labels_outside_of_the_classes_are_reported_by_line(listing: Path, parsed: list[Path]) -> None:
    load(listing)
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"line 6: label 5 is not in 0\.\.4; Arch\.class_num is 5"
        ) as error:
            load(listing, class_num=5)
        assert str(error.value).endswith(
            f"… and {len([at for at in range(LINES) if at % 7 > 4]) - 10} more lines"
        )


def test_errors_are_the_same_in_each_process(listing: Path, parsed: list[Path]) -> None:
    listing.write_text(listing.read_text() + "../x.jpg 1\nno label\n")
    errors = []
    for class_num in (None, 7, 3):
        with pytest.raises(UserError) as error:
            load(listing, class_num)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert f"line {LINES + 1}: path '../x.jpg' leads out of image_root" in errors[0]
    assert stored(listing.parent) == []


def change_label(listing: Path) -> None:
    status = listing.stat()
    listing.write_text(listing.read_text().replace("n0/0.jpg 0", "n0/0.jpg 3"))
    os.utime(listing, ns=(status.st_atime_ns, status.st_mtime_ns))  # same size and time


def replace_list(listing: Path) -> None:
    other = listing.with_name("other")
    other.write_text(listing.read_text().replace("n0/0.jpg 0", "n0/0.jpg 3"))
    other.replace(listing)


@pytest.mark.parametrize("change", [change_label, replace_list])
def test_a_changed_list_is_parsed_again(change: object, listing: Path, parsed: list[Path]) -> None:
    load(listing)
    change(listing)  # type: ignore[operator]
    assert load(listing).labels[0] == 3
    assert load(listing).labels[0] == 3
    assert len(parsed) == 2


def test_a_list_with_a_new_time_is_not_parsed_again(listing: Path, parsed: list[Path]) -> None:
    load(listing)
    os.utime(listing)
    load(listing)
    load(listing)
    assert len(parsed) == 1


def test_a_list_that_just_changed_is_compared(
    listing: Path, parsed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED", 10**18)
    first = load(listing)
    state = read._read_state(listing)
    listing.write_text(listing.read_text().replace("n0/0.jpg 0", "n0/0.jpg 3"))
    monkeypatch.setattr(read, "_read_state", lambda _: state)  # as if the clock were coarse
    assert load(listing).labels[0] == 3
    assert first.labels[0] == 0


def damage_length(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def damage_byte(file: Path) -> None:
    status = file.stat()
    with file.open("r+b") as stream:
        stream.seek(-200, os.SEEK_END)
        stream.write(b"\xff")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def remove(file: Path) -> None:
    file.unlink()


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_link(file: Path) -> None:
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGES = [damage_length, damage_byte, empty, remove, make_folder, make_link, make_pipe]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_replaced(damage: object, listing: Path, parsed: list[Path]) -> None:
    expected = content(load(listing))
    (file,) = stored(listing.parent)
    damage(file)  # type: ignore[operator]
    assert content(load(listing)) == expected
    if damage is not make_link:  # to the same file
        assert len(parsed) == 2
    assert content(load(listing)) == expected


RECORDS = ["", "{", "[]", "null", "[" * 100_000, '{"source": 1}', "\0"]


@pytest.mark.parametrize("record", RECORDS)
def test_a_damaged_record_is_replaced(record: str, listing: Path, parsed: list[Path], tmp_path: Path) -> None:
    expected = content(load(listing))
    (file,) = (tmp_path / "home").rglob("*.json")
    file.write_text(record)
    assert content(load(listing)) == expected
    assert len(parsed) == 2
    load(listing)
    assert len(parsed) == 2


def test_a_cache_from_an_archive_is_not_used(listing: Path, parsed: list[Path], tmp_path: Path) -> None:
    """A stranger's file beside the list, however well-formed, must not replace the labels of the list."""
    expected = content(load(listing))
    (file,) = stored(listing.parent)
    data = bytearray(file.read_bytes())
    data[-4096:] = bytes(4096)
    for record in (tmp_path / "home").rglob("*.json"):
        record.unlink()
    file.write_bytes(data)
    assert content(load(listing)) == expected
    assert stored(listing.parent) == [file]


HEADERS = [
    b"",
    b"\x80\x04cos\nsystem\n",
    b"ppcls arrays 1\n99999\n{}",
    b"ppcls arrays 1\n9999999999\n{}",
    b'ppcls arrays 1\n23\n{"paths": ["|O", [1]]} ',
    b'ppcls arrays 1\n28\n{"paths": ["|S9", [1, 2, 3]]}',
    b'ppcls arrays 1\n38\n{"paths": ["<i8", [281474976710655]]}   ',
    b'ppcls arrays 1\n27\n{"paths": ["<i8", [-1]]}   ',
    b'ppcls arrays 1\n27\n{"paths": ["<i8", [true]]} ',
    b"ppcls arrays 1\n60000\n" + b"[" * 60000,
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_hostile_header_is_rejected(header: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file.arrays"
    for data in (header, header + bytes(4096)):
        file.write_bytes(data)
        assert cache.map_arrays(file, cache.file_state(file.stat())) is None


def test_every_prefix_of_a_cache_is_rejected(listing: Path, parsed: list[Path], tmp_path: Path) -> None:
    load(listing)
    (file,) = stored(listing.parent)
    data = file.read_bytes()
    other = tmp_path / "part"
    for size in [*range(0, 300, 7), *range(300, len(data), 1013)]:
        other.write_bytes(data[:size])
        assert cache.map_arrays(other, cache.file_state(other.stat())) is None


def test_a_place_that_cannot_be_written_uses_the_home(
    listing: Path, parsed: list[Path], tmp_path: Path
) -> None:
    load(listing)
    (file,) = stored(listing.parent)
    file.unlink()
    file.mkdir()
    (file / "content").touch()
    for _ in range(2):
        load(listing)
    assert len(parsed) == 2
    assert len(stored(tmp_path / "home")) == 1


def test_without_a_writable_folder_each_process_parses(
    listing: Path, parsed: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").write_text("a file")
    for _ in range(2):
        assert len(load(listing)) == LINES
    assert len(parsed) == 2
    text = capfd.readouterr().err
    assert "can't be cached" in text
    assert "set PPCLS_HOME to a writable folder" in text


def test_ranks_that_start_together_parse_once(listing: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from ppcls.data.index.arrays import cache, read\n"
        "from ppcls.data.index.files import read_list\n"
        "read.CACHED_BYTES = 0\n"
        "cache.SETTLED = -10**12\n"
        "parse = read.parse_list\n"
        "def slow(*args):\n"
        "    print('parsed', flush=True)\n"
        "    time.sleep(0.5)\n"
        "    return parse(*args)\n"
        "read.parse_list = slow\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"index = read_list(Path({str(listing.parent)!r}), Path({str(listing)!r}), ' ')\n"
        "print(int(index.labels.sum()))\n"
    )
    environment = {**os.environ, "PPCLS_HOME": str(tmp_path / "home")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(4)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    outputs = [rank.communicate(timeout=GUARD)[0] for rank in ranks]
    total = str(sum(at % 7 for at in range(LINES)))
    assert sorted(output.split()[-1] for output in outputs) == [total] * 4
    assert sum(output.count("parsed") for output in outputs) == 1


@pytest.fixture
def scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets small folders be cached, and returns the list of the folders that were scanned."""
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    for module in (cache, safe_folders):
        monkeypatch.setattr(module, "SETTLED", -(10**12))
    for module in ("arrays.scan", "files", "folders"):
        monkeypatch.setattr(f"ppcls.data.index.{module}.CACHED_IMAGES", 10)
    calls: list[str] = []
    scandir = os.scandir

    def count(path: str | bytes | Path | int) -> object:
        if not isinstance(path, int):  # of a folder that pytest removes while the function is replaced
            calls.append(Path(os.fsdecode(path)).name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    return calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name in ("ant", "bee", "bee/more"):
        (root / name).mkdir(parents=True)
        for at in range(20):
            (root / name / f"{at}.jpg").touch()
    (root / "ant" / "notes.txt").touch()
    return root


def test_a_folder_is_scanned_once(folder: Path, scans: list[str]) -> None:
    first = read_folder(folder, (".jpg",))
    scans.clear()
    second = read_folder(folder, (".jpg",))
    assert not {"ant", "bee", "more"} & set(scans)
    assert content(first) == content(second)
    assert second.skipped == {".txt": 1}


def add_image(root: Path) -> None:
    (root / "bee" / "more" / "new.jpg").touch()


def remove_image(root: Path) -> None:
    (root / "ant" / "3.jpg").unlink()


def rename_image(root: Path) -> None:
    (root / "ant" / "3.jpg").rename(root / "ant" / "03.jpg")


def add_class(root: Path) -> None:
    (root / "cat").mkdir()
    (root / "cat" / "1.jpg").touch()


def replace_folder(root: Path) -> None:
    (root / "bee" / "more").rename(root.parent / "old")
    (root / "bee" / "more").mkdir()


@pytest.mark.parametrize("change", [add_image, remove_image, rename_image, add_class, replace_folder])
def test_a_changed_folder_is_scanned_again(change: object, folder: Path, scans: list[str]) -> None:
    before = read_folder(folder, (".jpg",))
    change(folder)  # type: ignore[operator]
    expected = sorted(os.fsencode(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    for _ in range(2):
        index = read_folder(folder, (".jpg",))
        assert sorted(index.paths.tolist()) == expected
    assert content(index) != content(before)


def test_a_link_that_leads_out_is_found_after_a_scan(folder: Path, scans: list[str], tmp_path: Path) -> None:
    read_folder(folder, (".jpg",))
    (tmp_path / "secret.jpg").touch()
    (folder / "ant" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    for _ in range(2):
        with pytest.raises(UserError, match=r"link\.jpg is a link that leads out of"):
            read_folder(folder, (".jpg",))


def test_a_link_whose_target_moves_out_is_found(folder: Path, scans: list[str], tmp_path: Path) -> None:
    """The folder with the link does not change. So folders with links are always scanned."""
    (folder / "images").mkdir()
    (folder / "images" / "x.jpg").touch()
    (folder / "ant" / "link.jpg").symlink_to(folder / "images" / "x.jpg")
    read_folder(folder, (".jpg",))
    (tmp_path / "secret.jpg").touch()
    (folder / "images" / "x.jpg").unlink()
    (folder / "images" / "x.jpg").symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(UserError, match=r"link\.jpg is a link that leads out of"):
        read_folder(folder, (".jpg",))


def test_a_folder_that_just_changed_is_scanned_again(
    folder: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_folders, "SETTLED", 10**18)
    for _ in range(2):
        read_folder(folder, (".jpg",))
        assert "ant" in scans
        scans.clear()


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_split_is_computed_once(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def count(index: FileIndex, val: Fraction, seed: int, key: str) -> NDArray[np.bool_]:
        hashed.append(1)
        return choose_validation(index, val, seed, key)

    monkeypatch.setattr("ppcls.data.index.folders.choose_validation", count)
    ops = [{"DecodeImage": {}}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": {}}]
    fields = {"image_root": str(folder), "part": part, "transform_ops": ops}
    dataset = ImageFolderDataset.model_validate(fields)
    results = [content(dataset.read(2)) for _ in range(2)]
    assert len(hashed) == 1
    assert results[0] == results[1]
    add_image(folder)
    assert len(dataset.read(2)) != len(results[0][0]) or part == "val"  # type: ignore[index]
    assert len(hashed) == 2


def test_records_are_plain_data(listing: Path, parsed: list[Path], tmp_path: Path) -> None:
    load(listing)
    (record,) = (tmp_path / "home").rglob("*.json")
    assert set(json.loads(record.read_text())) == {"source", "digest", "settled", "arrays", "place"}
