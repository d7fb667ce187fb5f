"""Conformance of all loaders: bad images."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from loader_conformance import (
    FAST,
    MAKERS,
    TRAIN,
    Arrays,
    Samples,
    arrays,
    assert_equal,
    cases,
    check_against_reference,
    folder_loader,
    read_list,
    take,
    write_shards,
)
from PIL import Image

from ppcls.data.bad_images.lists import BadImageError
from ppcls.data.index.protocol import Index
from ppcls.data.index.python_source import PythonIndex
from ppcls.data.index.records import RecordIndex
from ppcls.data.records.formats import FORMATS as CONTAINER_FORMATS
from ppcls.data.records.shard import OpenFiles, default_index_path
from ppcls.data.sampling.epoch_samplers import (
    SequentialSampler,
    ShuffledSampler,
)
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import (
    DecodeImage,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    plan_chain,
)
from ppcls.errors import UserError


def delete(path: Path) -> None:
    path.unlink()


def truncate_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def overwrite_with_text(path: Path) -> None:
    path.write_text("this is not an image\n" * 20)


def truncate_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def truncate_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_huge_png(path: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(path, "PNG")


def replace_by_gif(path: Path) -> None:
    Image.new("RGB", (30, 30)).save(path, "GIF")


def replace_by_five_channels(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((30, 30, 5), np.uint8), photometric="minisblack", planarconfig="contig")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (delete, "no such file or directory"),
    "empty": (truncate_to_nothing, "the file is empty"),
    "text": (overwrite_with_text, "not an image that can be decoded"),
    "cut": (truncate_header, "the JPEG file is truncated: its end is missing; copy it again"),
    "half": (truncate_half, "the JPEG file is truncated: its end is missing; copy it again"),
    "gif": (replace_by_gif, "a GIF is not supported; convert the image to JPEG or PNG"),
    "huge": (replace_by_huge_png, "20000x20000 pixels are more than DecodeImage's max_pixels, 100000000"),
    "five channels": (replace_by_five_channels, "expected 3 channels, found 5 channels"),
    "folder": (replace_by_folder, "is a directory"),
}


@cases("damage,reason", DAMAGES, on_slow=["missing", "text", "half"])
def test_bad_image_error_names_file_line_and_reason(
    kind: str,
    jpeg_folder: Path,
    damage: Callable[[Path], None],
    reason: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(jpeg_folder / "7.jpg")
    loader = folder_loader(kind, jpeg_folder)
    found: list[Arrays] = []
    with pytest.raises(BadImageError) as caught:
        found.extend(map(arrays, loader))
    assert str(caught.value) == f"{jpeg_folder}/7.jpg ({jpeg_folder}/list.txt, line 8): {reason}"
    assert isinstance(caught.value, UserError)
    assert len(found) <= 3, "the bad image's batch, the fourth, must not be yielded"
    assert "Traceback" not in capfd.readouterr().err


@cases("source", {name: name for name in (*CONTAINER_FORMATS, "python")}, on_slow=["tfrecord"])
def test_bad_record_error_names_shard_and_record(kind: str, jpeg_folder: Path, source: str) -> None:
    """The eleventh record of twelve is bad: the second one of the second shard."""
    good = (jpeg_folder / "0.jpg").read_bytes()
    samples = [(good[:40] if number == 10 else good, number) for number in range(12)]
    if source == "python":
        index: Index = PythonIndex("mine", Samples(samples), np.arange(12))
        place = "Python source 'mine' (sample 10)"
    else:
        index = RecordIndex(write_shards(source, jpeg_folder, samples))
        second = jpeg_folder / f"9{CONTAINER_FORMATS[source].suffix}"
        shard = CONTAINER_FORMATS[source].open(second, default_index_path(second), OpenFiles())
        place = f"{second} ({shard.where(1)})"
    loader = MAKERS[kind](index, Order(SequentialSampler(12), batch_size=2), TRAIN)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    assert str(caught.value) == f"{place}: the JPEG file is truncated: its end is missing; copy it again"


@pytest.mark.parametrize("kind", FAST)
def test_repaired_record_is_read_by_same_loader(kind: str, jpeg_folder: Path) -> None:
    good = (jpeg_folder / "0.jpg").read_bytes()
    index = RecordIndex(write_shards("tfrecord", jpeg_folder, [(good, number) for number in range(12)]))
    path = jpeg_folder / "9.tfrecord"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    loader = MAKERS[kind](index, Order(SequentialSampler(12), batch_size=2), TRAIN)
    found: list[Arrays] = []
    with pytest.raises(BadImageError, match="checksum"):
        found.extend(map(arrays, loader))
    read = path.stat()
    path.write_bytes(whole)
    os.utime(path, ns=(read.st_atime_ns, read.st_mtime_ns))  # a file with another time is rejected
    found += take(loader)
    assert [label for _, labels, _, _, _ in found for label in labels] == list(range(12))


@pytest.mark.parametrize("kind", [*FAST, "paddle-2"])
def test_error_lists_all_bad_images_of_batch(kind: str, jpeg_folder: Path) -> None:
    for number in (4, 5):
        delete(jpeg_folder / f"{number}.jpg")
    loader = folder_loader(kind, jpeg_folder, batch_size=12)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    lines = str(caught.value).splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"{jpeg_folder}/4.jpg", f"{jpeg_folder}/5.jpg"]


@pytest.mark.parametrize("kind", FAST)
def test_error_shows_ten_bad_images(kind: str, jpeg_folder: Path) -> None:
    for number in range(12):
        truncate_to_nothing(jpeg_folder / f"{number}.jpg")
    loader = folder_loader(kind, jpeg_folder, batch_size=15)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "… and 2 more"


def test_repaired_image_is_read_by_same_loader(kind: str, jpeg_folder: Path) -> None:
    good = (jpeg_folder / "0.jpg").read_bytes()
    truncate_to_nothing(jpeg_folder / "7.jpg")
    loader = folder_loader(kind, jpeg_folder)
    found: list[Arrays] = []
    with pytest.raises(BadImageError):
        found.extend(map(arrays, loader))
    (jpeg_folder / "7.jpg").write_bytes(good)
    found += take(loader)
    assert_equal(
        found,
        take(
            MAKERS[kind](
                read_list(jpeg_folder, jpeg_folder / "list.txt"),
                Order(SequentialSampler(12), batch_size=2),
                TRAIN,
            )
        ),
    )


DEEP = plan_chain(
    [
        DecodeImage(channels=5, dtype="uint16"),
        RandCropImage(size=(24, 20)),
        RandFlipImage(),
        NormalizeImage(scale=1 / 65535, mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(0.225,) * 5),
    ],
    "CHW",
)


@pytest.fixture
def tiff_folder(tmp_path: Path) -> Path:
    """A folder of eight 16-bit TIFFs of five channels with their list; two are compressed."""
    rng = np.random.default_rng(3)
    for number in range(8):
        shape = (30 + number, 40 - number, 5)
        tifffile.imwrite(
            tmp_path / f"{number}.tif",
            rng.integers(0, 65536, shape, np.uint16),
            photometric="minisblack",
            planarconfig="contig",
            compression={3: "lzw", 4: "zlib"}.get(number),
        )
    (tmp_path / "list.txt").write_text("".join(f"{number}.tif {number}\n" for number in range(8)))
    return tmp_path


def test_five_channel_images_match_reference(kind: str, tiff_folder: Path) -> None:
    index, order = read_list(tiff_folder, tiff_folder / "list.txt"), Order(ShuffledSampler(8), batch_size=4)
    found = take(MAKERS[kind](index, order, DEEP))
    assert {each[0].shape for each in found} == {(4, 5, 20, 24)}
    check_against_reference(kind, found, index, order, DEEP, 0)


@pytest.mark.parametrize("kind", FAST)
def test_wrong_channel_count_is_bad_image(kind: str, tiff_folder: Path, photos: dict[str, Path]) -> None:
    for number, name in enumerate(("grey-odd", "jpeg420-odd", "alpha-odd"), start=3):
        shutil.copy(photos[name], tiff_folder / f"{number}.tif")
    loader = folder_loader(kind, tiff_folder, 8, DEEP)
    with pytest.raises(BadImageError) as caught:
        take(loader)
    assert str(caught.value).splitlines() == [
        f"{tiff_folder}/{number}.tif ({tiff_folder}/list.txt, line {number + 1}): "
        f"expected 5 channels, found {found}"
        for number, found in ((3, "1 channel"), (4, "3 channels"), (5, "4 channels"))
    ]
