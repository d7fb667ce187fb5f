"""Conversions: complete, resumed after a kill, rejected."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.index.files import FileIndex, read_folder
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.recordio import RecordIOFormat
from ppcls.data.records.shard import ImageRecord, OpenFiles, RecordFormat, default_index_path
from ppcls.dataset_tools.convert import (
    Conversion,
    convert,
    file_sizes,
    plan_conversion,
    split_by_size,
    split_evenly,
)
from ppcls.errors import UserError

COUNT = 10


@pytest.fixture
def images(tmp_path: Path) -> FileIndex:
    """Ten files of random bytes in two classes; a conversion decodes nothing."""
    random = np.random.default_rng(0)
    for number in range(COUNT):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.{'JPG' if number % 3 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(100 + 50 * number))
    return read_folder(tmp_path / "images", (".jpg", ".png"))


@pytest.fixture(params=FORMATS)
def container(request: pytest.FixtureRequest) -> RecordFormat:
    return FORMATS[request.param]


def begin(images: FileIndex, container: RecordFormat, folder: Path, shards: int = 4) -> Conversion:
    return plan_conversion(
        images, container, folder, {"shards": shards}, lambda: split_evenly(len(images), shards)
    )


def run(conversion: Conversion) -> int:
    return convert(conversion, lambda _images: None)


def content(conversion: Conversion) -> list[tuple[bytes, int]]:
    found = []
    for path, _ in conversion.shards:
        shard = conversion.container.open(path, default_index_path(path), OpenFiles())
        found += [(shard.read(number), int(label)) for number, label in enumerate(shard.labels)]
    return found


def source(images: FileIndex) -> list[tuple[bytes, int]]:
    return [(images.read(position), int(label)) for position, label in enumerate(images.labels)]


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns a value that changes if a file is written again."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


@given(st.integers(1, 200), st.data())
def test_split_evenly_differs_by_at_most_one(count: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, count))
    sizes = np.diff(split_evenly(count, shards), prepend=0)
    assert len(sizes) == shards
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 120))
def test_split_by_size_fills_shards(sizes: list[int], most: int) -> None:
    ends = split_by_size(np.array(sizes), most)
    parts = [sizes[first:last] for first, last in zip((0, *ends), ends, strict=False)]
    assert [size for part in parts for size in part] == sizes
    assert all(parts)
    assert all(sum(part) <= most or sum(map(bool, part)) == 1 for part in parts)
    for part, following in pairwise(parts):
        assert sum(part) + following[0] > most, "no shard ends before it must"


def test_split_evenly_rejects_more_shards_than_images() -> None:
    with pytest.raises(UserError, match="expected at most one shard per image, got 4 shards for 3 images"):
        split_evenly(3, 4)


def test_file_sizes_returns_bytes_and_reports_missing_files(images: FileIndex) -> None:
    assert file_sizes(images).tolist() == [len(image) for image, _ in source(images)]
    Path(images.name(3)).unlink()
    with pytest.raises(BadImageError, match=r"a/6\.png .*: no such file or directory"):
        file_sizes(images)


def test_convert_keeps_order_and_content(images: FileIndex, container: RecordFormat, tmp_path: Path) -> None:
    conversion = begin(images, container, tmp_path / "deep" / "out")
    done: list[float] = []
    assert convert(conversion, done.append) == 0
    assert sum(done) == COUNT
    assert content(conversion) == source(images)
    assert [path.name for path, _ in conversion.shards] == [
        f"shard-0000{number}-of-00004{container.suffix}" for number in range(4)
    ]
    before = state(tmp_path)
    assert run(begin(images, container, tmp_path / "deep" / "out")) == 4
    assert state(tmp_path) == before, "nothing is written twice"


@pytest.mark.parametrize("killed_after", [1, 3, 6, 9])
def test_killed_conversion_resumes(
    images: FileIndex, container: RecordFormat, tmp_path: Path, killed_after: int
) -> None:
    """After so many images written or verified, in halves; a shard has two or three."""
    conversion = begin(images, container, tmp_path / "out")
    child = os.fork()
    if not child:
        done: list[float] = []

        def advance(images: float) -> None:
            done.append(images)
            if sum(done) >= killed_after:
                os.kill(os.getpid(), signal.SIGKILL)

        convert(conversion, advance)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    finished = sum(positions.stop <= killed_after - 1 for _, positions in conversion.shards)
    kept = {name: each for name, each in state(tmp_path / "out").items() if not name.startswith(".")}
    assert any(path.name.startswith(".") for path in (tmp_path / "out").iterdir()), (
        "it left a shard half done"
    )
    assert run(begin(images, container, tmp_path / "out")) >= finished
    assert content(conversion) == source(images)
    after = state(tmp_path / "out")
    assert {name: after[name] for name in kept} == kept, "what was finished is kept"
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_convert_names_unreadable_image_and_resumes(
    images: FileIndex, container: RecordFormat, tmp_path: Path
) -> None:
    broken = Path(images.name(6))
    good = broken.read_bytes()
    broken.write_bytes(b"")
    with pytest.raises(BadImageError) as caught:
        run(begin(images, container, tmp_path / "out"))
    assert str(caught.value) == f"{broken} ({tmp_path}/images): the file is empty"
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    broken.write_bytes(good)
    conversion = begin(images, container, tmp_path / "out")
    assert run(conversion) == 2
    assert content(conversion) == source(images)


@dataclass(frozen=True)
class Faulty(RecordIOFormat):
    """Writes one record with other content than the given one."""

    label: int = 0
    image: bytes = b""

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        *all_but_last, last = records
        wrong = ImageRecord(last.name, last.image + self.image, last.label + self.label)
        super().write(path, [*all_but_last, wrong])


@pytest.mark.parametrize(
    ("faulty", "text"),
    [
        (Faulty(label=1), "labels in the shard differ from labels of the images"),
        (
            Faulty(image=b"x"),
            "record 1 at byte .* differs from .*; this image may have changed since",
        ),
    ],
)
def test_convert_discards_shard_that_fails_verification(
    images: FileIndex, tmp_path: Path, faulty: Faulty, text: str
) -> None:
    with pytest.raises(UserError, match=text):
        run(begin(images, faulty, tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["convert.json"]


@pytest.mark.parametrize("damage", ["cut short", "other bytes"])
def test_convert_reports_damaged_finished_shard(
    images: FileIndex, container: RecordFormat, tmp_path: Path, damage: str
) -> None:
    conversion = begin(images, container, tmp_path / "out")
    run(conversion)
    path, positions = conversion.shards[1]
    file = path / "data.mdb" if container.is_folder else path
    whole = file.read_bytes()
    image = images.read(positions[0])
    if damage == "cut short":
        os.truncate(file, whole.index(image) + 1)
    else:
        file.write_bytes(whole.replace(image, image[::-1]))
    with pytest.raises(
        UserError, match=rf"{path.name} was complete after an earlier conversion, but is damaged now: "
    ) as caught:
        run(conversion)
    assert str(caught.value).count("remove the shard to write it again") == 1
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run(conversion) == 3
    assert content(conversion) == source(images)


def test_convert_names_image_that_became_unreadable(
    images: FileIndex, container: RecordFormat, tmp_path: Path
) -> None:
    conversion = begin(images, container, tmp_path / "out")
    run(conversion)
    broken = Path(images.name(6))
    broken.write_bytes(b"")
    with pytest.raises(BadImageError) as caught:
        run(conversion)
    assert str(caught.value) == f"{broken} ({tmp_path}/images): the file is empty"


def test_plan_conversion_rejects_other_folder(images: FileIndex, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    for taken in (tmp_path / "out", tmp_path / "out" / "mine"):
        with pytest.raises(UserError) as caught:
            begin(images, FORMATS["lmdb"], taken)
        assert (
            str(caught.value)
            == f"{taken} already exists and was not created by this tool; choose another folder with --out"
        )
    assert state(tmp_path / "out").keys() == {"mine"}


def test_plan_conversion_rejects_other_settings(images: FileIndex, tmp_path: Path) -> None:
    run(begin(images, FORMATS["recordio"], tmp_path / "out"))
    before = state(tmp_path)
    for container, shards, text in (
        ("tfrecord", 4, "format was RecordIO and is now TFRecord"),
        ("recordio", 3, "shards was 4 and is now 3"),
    ):
        with pytest.raises(UserError) as caught:
            begin(images, FORMATS[container], tmp_path / "out", shards)
        assert str(caught.value) == (
            f"{tmp_path}/out was created with other settings: {text}; remove the folder, or choose "
            "another one with --out"
        )
    Path(images.name(2)).rename(images.root / "a" / "other.jpg")
    with pytest.raises(UserError, match="paths or labels of the images have changed; remove"):
        begin(read_folder(images.root, (".jpg", ".png")), FORMATS["recordio"], tmp_path / "out")
    assert {name: state(tmp_path)[name] for name in before if name.startswith("out")} == {
        name: each for name, each in before.items() if name.startswith("out")
    }


def test_plan_conversion_keeps_planned_shards(images: FileIndex, tmp_path: Path) -> None:
    """Though a mended image's size would divide them otherwise."""
    begin(images, FORMATS["lmdb"], tmp_path / "out")

    def again() -> tuple[int, ...]:
        raise AssertionError("the plan is there")

    conversion = plan_conversion(images, FORMATS["lmdb"], tmp_path / "out", {"shards": 4}, again)
    assert conversion.ends == (2, 5, 7, 10)
