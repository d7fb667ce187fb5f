"""Skipping bad images costs the same for each of them, however many there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ppcls.data.bad_images import lists, quarantine
from ppcls.data.bad_images.lists import BadImage, GrowingList, append_bad_images
from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import find_samples
from ppcls.data.index.records import RecordIndex
from ppcls.data.sampling.order import StepSamples
from ppcls.data.transforms.specs import DecodeImage
from ppcls.errors import UserError

COUNT = 5000


def index_of(root: Path, count: int = COUNT) -> FileIndex:
    paths = np.array([b"a/%d.jpg" % at for at in range(count)])
    return FileIndex(root, paths, np.zeros(count, np.int64), root / "list.txt", np.arange(1, count + 1))


def test_each_line_of_the_list_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    parse = lists._parse_lines

    def count(path: Path, text: bytes, before: int) -> list[BadImage]:
        nonlocal parsed
        parsed += text.count(b"\n")
        return parse(path, text, before)

    monkeypatch.setattr(lists, "_parse_lines", count)
    monkeypatch.setattr(quarantine, "print_error", lambda _: None)
    bad = Quarantine(index_of(tmp_path), tmp_path / "bad_images.txt")
    for at in range(500):
        bad.add({at: "damaged"})
    assert bad.listed == 500
    assert parsed == 500


def test_recheck_asks_for_no_name_of_a_good_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(tmp_path)
    asked: list[int] = []
    name = FileIndex.name

    def count(index: FileIndex, position: int) -> str:
        asked.append(position)
        return name(index, position)

    file = tmp_path / "bad_images.txt"
    append_bad_images(file, [BadImage(index.name(at), "list.txt, line 9", "damaged") for at in (7, 4000)])
    append_bad_images(
        file, [BadImage("/elsewhere/a/8.jpg", "x", "damaged"), BadImage("y" * 9000, "x", "damaged")]
    )
    monkeypatch.setattr(FileIndex, "name", count)
    monkeypatch.setattr(quarantine, "print_error", lambda _: None)
    bad = Quarantine(index, file)
    bad.recheck([file], DecodeImage())
    assert set(asked) == {7, 4000}
    assert [at for at in range(COUNT) if at in bad] == [7, 4000]


class Shard:
    """A container that counts the records whose location was asked for."""

    asked = 0

    def __init__(self, name: str) -> None:
        self.path = Path(name)
        self.labels = np.zeros(100, np.int64)

    def where(self, number: int) -> str:
        Shard.asked += 1
        return f"record {number}"

    def read(self, number: int) -> bytes:
        raise NotImplementedError(number)


def test_only_the_listed_records_of_a_container_are_found() -> None:
    index = RecordIndex([Shard(f"{number}.tar") for number in range(10)])
    assert find_samples(index, {("3.tar", "record 7"), ("5.tar", "record 200"), ("8.tar", "record 0")}) == [
        307,
        800,
    ]
    assert Shard.asked == 300


def test_a_step_of_bad_images_continues_the_search_for_a_good_one(tmp_path: Path) -> None:
    bad = Quarantine(index_of(tmp_path), tmp_path / "bad_images.txt")
    bad._positions |= set(range(4000))
    looked_up = 0

    class Spare(np.ndarray):
        def __getitem__(self, key: object) -> object:
            nonlocal looked_up
            looked_up += 1
            return np.asarray(super().__getitem__(key))  # type: ignore[index]

    spare = np.arange(COUNT).view(Spare)
    for start in range(0, 4000, 10):
        rows = np.arange(start, start + 10)
        step = StepSamples(rows, np.zeros(10, np.int64), 10, 1.0, update=True)
        replaced = bad.replace_bad(step, 1, spare)
        assert replaced.valid == 0
        assert set(replaced.indices.tolist()) == {4000}
    assert looked_up < 3 * 4000


def replace(path: Path) -> None:
    other = path.with_name("other")
    append_bad_images(other, [BadImage("new", "x", "y"), BadImage("newer", "x", "y")])
    other.replace(path)


def shorten(path: Path) -> None:
    path.write_text("new\tx\ty\nnewer\tx\ty\n")


@pytest.mark.parametrize("change", [replace, shorten])
def test_a_replaced_list_is_read_again(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "bad_images.txt"
    growing = GrowingList(path)
    assert growing.read_places() == set()
    append_bad_images(path, [BadImage(f"a long name of the image {at}", "x", "y") for at in range(9)])
    assert len(growing.read_places()) == 9
    change(path)
    assert growing.read_places() == {("new", "x"), ("newer", "x")}
    path.unlink()
    assert growing.read_places() == set()


def test_an_incomplete_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.txt"
    growing = GrowingList(path)
    path.write_bytes(b"a\tb\tc\nd\te")
    assert growing.read_places() == {("a", "b")}
    with path.open("ab") as file:
        file.write(b"\tf\n")
    assert growing.read_places() == {("a", "b"), ("d", "e")}
    with path.open("ab") as file:
        file.write(b"wrong\n")
    with pytest.raises(UserError, match=r"line 3: expected path, location and reason"):
        growing.read_places()


def test_a_pipe_as_list_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bad_images.txt")
    with pytest.raises(UserError, match="can't read this list of bad images"):
        GrowingList(tmp_path / "bad_images.txt").read_places()
