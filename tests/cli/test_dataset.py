"""``tools/dataset.py`` as its users call it: containers, and what becomes of image files."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tifffile
from paths import ROOT
from PIL import Image
from skimage import data

from ppcls.cli import dataset as dataset_cli
from ppcls.config.sections.dataset import LMDBDataset, RecordIODataset, TFRecordDataset, WebDataset
from ppcls.data.index.class_names import read_class_names
from ppcls.data.index.read import read_index
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import ImageRecord
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage

CHAIN = (DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage())
DATASETS = {
    "webdataset": WebDataset,
    "tfrecord": TFRecordDataset,
    "recordio": RecordIODataset,
    "lmdb": LMDBDataset,
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Six files in two class folders, with a list that names them backwards."""
    folder = tmp_path / "images"
    lines = []
    for number in range(6):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.jpeg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"image %d" % number)
        lines.append(f"{path.relative_to(folder)}\t{number % 2}\n")
    (folder / "list.txt").write_text("".join(reversed(lines)))
    (folder / "names.txt").write_text("0 cat\n1 dog\n")
    return folder


def call(*arguments: object) -> int:
    return dataset_cli.main([str(each) for each in arguments])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_becomes_a_container(
    images: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for already in ("", ", 2 of which existed already"):
        assert call("convert", name, images, "--out", out, "--shards", 2) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"{out}: 6 images in 2 shards{already}; all verified"
    dataset = DATASETS[name](paths=(f"{out}/*{FORMATS[name].suffix}",), transform_ops=CHAIN, **_endings(name))
    index = read_index(dataset, 2)
    assert index.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [index.read(i) for i in range(6)] == [b"image %d" % i for i in (0, 2, 4, 1, 3, 5)]
    assert read_class_names(out / "label_list.txt", 2) == ("cat", "dog")


def _endings(name: str) -> dict[str, tuple[str, ...]]:
    return {"extensions": (".jpeg",)} if name == "webdataset" else {}


def test_a_list_becomes_a_container(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    listing = tmp_path / "elsewhere.txt"
    (images / "list.txt").rename(listing)
    options = (
        "--image-root",
        images,
        "--delimiter",
        "\t",
        "--names",
        images / "names.txt",
        "--shard-size",
        1,
    )
    assert call("convert", "tfrecord", listing, "--out", out, *options) == 0
    index = read_index(TFRecordDataset(paths=(f"{out}/*.tfrecord",), transform_ops=CHAIN), 2)
    assert [index.read(i) for i in range(6)] == [b"image %d" % i for i in (5, 4, 3, 2, 1, 0)]
    assert index.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert (out / "label_list.txt").read_text() == "0 cat\n1 dog\n"


def test_a_lists_folder_is_its_image_root(images: Path, tmp_path: Path) -> None:
    arguments = ("recordio", images / "list.txt", "--out", tmp_path / "out", "--delimiter", "\t")
    assert call("convert", *arguments) == 0
    assert not (tmp_path / "out" / "label_list.txt").exists()


def test_what_can_not_be_converted(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert call("convert", "lmdb", tmp_path / "gone", "--out", out) == 1
    assert said(capsys) == f"{tmp_path}/gone: no such list file; expected lines of 'path label'"
    assert call("convert", "lmdb", images / "list.txt", "--out", out) == 1
    assert "list.txt, line 1: expected 'path label', got no label after ' '" in said(capsys)
    assert call("convert", "lmdb", images, "--out", out, "--shards", 7) == 1
    assert said(capsys) == "7 shards of 6 images: expected at least one image a shard"
    (images / "noending").write_bytes(b"x")
    (images / "list.txt").write_text("noending 0\n")
    assert call("convert", "webdataset", images / "list.txt", "--out", out) == 1
    assert said(capsys).endswith("some files have no suffix such as .jpg, which WebDataset needs")
    (images / "list.txt").write_text("cat/0.jpeg -1\n")
    assert call("convert", "lmdb", images / "list.txt", "--out", out) == 1
    assert said(capsys).endswith("list.txt, line 1: expected a label from 0, got -1")
    assert not out.exists()


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "²"])
def test_numbers_of_shards(
    images: Path, tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--shards", "--shard-size"):
        with pytest.raises(SystemExit):
            call("convert", "lmdb", images, "--out", tmp_path / "out", f"{option}={value}")
        assert f"argument {option}: expected an integer > 0, got '{value}'" in capsys.readouterr().err


def test_an_interrupted_conversion_says_how_to_go_on(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ppcls.dataset_tools.convert.convert", interrupt)
    assert call("convert", "lmdb", images, "--out", tmp_path / "out") == 130
    last = said(capsys).splitlines()[-1]
    assert last == "interrupted; the same command continues after the last complete shard"


def test_index_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.tar", "b.tfrecord", "c.rec")]
    for path, container in zip(paths, ("webdataset", "tfrecord", "recordio"), strict=True):
        FORMATS[container].write(path, [ImageRecord("0.jpg", b"image", 3)])
    indexes = [path.with_suffix(".idx") for path in paths]
    for word in ("written", "exists already"):
        assert call("index", *paths) == 0
        assert capsys.readouterr().out == "".join(f"{index}: {word}\n" for index in indexes)
    indexes[1].write_text("mine")
    assert call("index", *paths) == 1
    assert said(capsys) == f"{indexes[1]}: another index exists; remove it to write a new one"
    assert indexes[1].read_text() == "mine"


def test_a_format_that_the_ending_does_not_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train-00000-of-01024"
    FORMATS["tfrecord"].write(path, [ImageRecord("0.jpg", b"image", 3)])
    assert call("index", path) == 1
    assert said(capsys) == (
        f"{path}: expected a name ending in .tar, .tfrecord, .tfrecords, .rec; say its --format"
    )
    assert call("index", "--format", "tfrecord", path) == 0
    assert (tmp_path / "train-00000-of-01024.idx").exists()
    assert call("index", "--format", "lmdb", tmp_path) == 1
    assert said(capsys) == f"{tmp_path}: LMDB needs no index file"
    assert call("index", "--format", "recordio", path) == 1
    assert "byte 0: expected the magic number" in said(capsys)
    assert call("index", tmp_path / "gone.tar") == 1
    assert "gone.tar" in said(capsys)


def test_an_index_of_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.lmdb"
    FORMATS["lmdb"].write(path, [ImageRecord("0.jpg", b"image", 3)])
    for given in ([path], [path / "data.mdb"], ["--format", "webdataset", path]):
        assert call("index", *given) == 1
        assert said(capsys) == f"{given[-1]}: LMDB needs no index file"
    for given in ([tmp_path], ["--format", "webdataset", tmp_path]):
        assert call("index", *given) == 1
        assert said(capsys) == f"{tmp_path}: is a folder; name the files in it, such as {tmp_path}/*.tar"


@pytest.mark.parametrize("command", [["split"], ["stats"], ["convert", "lmdb"], ["check"]])
def test_a_container_is_no_list(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.tar"
    FORMATS["webdataset"].write(path, [ImageRecord("0.jpg", b"image", 3)])
    assert call(*command, path, "--out", tmp_path / "out") == 1
    assert f"error: {path}: is a container; " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_split_of_a_folder(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lists"
    assert call("split", images, "--val", 2, "--seed", 3, "--out", out) == 0
    assert capsys.readouterr().out == f"{out}: 4 images for training, 2 for validation\n"
    lines = {name: (out / f"{name}_list.txt").read_text().splitlines() for name in ("train", "val")}
    assert [each.partition("/")[0] for each in lines["val"]] == ["cat", "dog"]
    assert len(set(lines["train"] + lines["val"])) == 6
    assert (out / "label_list.txt").read_text() == "0 cat\n1 dog\n"
    assert call("split", images, "--out", out) == 1
    assert said(capsys) == f"{out} exists already; nothing was written, choose another folder with --out"
    (images / "lone").mkdir()
    (images / "lone" / "1.jpg").touch()
    assert call("split", images, "--val", 2, "--out", tmp_path / "more") == 0
    assert capsys.readouterr().out.endswith("too few images for validation: class 2 (lone)\n")


def test_a_split_of_a_list(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lists"
    (images / "bird.jpeg").touch()
    with (images / "list.txt").open("a") as file:
        file.write("bird.jpeg\t2\n")
    options = ("--delimiter", "\t", "--val", "1/3", "--out", out)
    assert call("split", images / "list.txt", *options) == 0
    assert capsys.readouterr().out == (
        f"{out}: 5 images for training, 2 for validation\ntoo few images for validation: class 2\n"
    )
    assert "bird.jpeg\t2\n" in (out / "train_list.txt").read_text()
    assert not (out / "label_list.txt").exists()


@pytest.mark.parametrize("value", ["0", "1.0", "-0.1", "1/0", "x", "nan"])
def test_shares_to_validate(
    images: Path, tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call("split", images, "--out", tmp_path / "out", f"--val={value}")
    assert f"expected a share such as 0.2, or an integer > 0, got '{value}'" in capsys.readouterr().err
    assert call("split", images, "--out", tmp_path / "out", "--val", "0.9") == 1
    assert said(capsys).startswith("--val: gives 5 of 6 images for validation, expected 1 to 4")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    for number in range(4):
        image = Image.fromarray(data.coffee()).crop((100, 50, 340, 230))
        path = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=95)
    (folder / "list.txt").write_text("cat/0.jpg 0\n")
    return folder


def test_resizing(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small"
    arguments = ("resize", photographs, "--max-size", 60, "--quality", 80, "--out", out)
    assert call(*arguments) == 0
    files, sizes, decoding, gain = capsys.readouterr().out.splitlines()
    assert (
        files == f"{out}: 4 images made smaller, 0 copied unchanged, 0 existed already; 1 other files copied"
    )
    before, after = (
        sum(path.stat().st_size for path in folder.rglob("*.jpg")) for folder in (photographs, out)
    )
    ratio = f"{before / after:.2f}"
    assert sizes == f"images: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after, {ratio} times smaller"
    assert before > 3 * after
    shape = (
        r"decoding: [\d.]+ ms per image before, [\d.]+ ms after, ([\d.]+) times as fast \(mean of 4 images.*"
    )
    faster = re.fullmatch(shape, decoding)
    assert faster
    assert float(faster[1]) > 1
    assert f"at most {faster[1]} if decoding limits it, at most {ratio} if the disk limits it" in gain
    assert call(*arguments) == 0
    assert "0 images made smaller, 0 copied unchanged, 4 existed already" in capsys.readouterr().out


def test_resizing_with_a_bad_image(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photographs / "cat" / "bad.jpg").write_bytes(b"no image")
    out = tmp_path / "small"
    assert call("resize", photographs, "--max-size", 60, "--out", out) == 1
    shown = capsys.readouterr()
    assert "4 images made smaller" in shown.out
    assert shown.err[shown.err.index("error: ") :].splitlines() == [
        f"error: 1 images are bad and missing in {out}",
        f"{photographs}/cat/bad.jpg ({photographs}): not an image that can be decoded",
    ]


@pytest.mark.parametrize("option", ["--quality=0", "--quality=101", "--quality=x", "--max-size=0"])
def test_numbers_of_resizing(
    photographs: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        call("resize", photographs, "--max-size=9", "--out", tmp_path / "out", option)
    assert f"argument {option.partition('=')[0]}: expected an integer" in capsys.readouterr().err


def test_an_interrupted_resizing_says_how_to_go_on(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ppcls.dataset_tools.resize.shrink", interrupt)
    assert call("resize", photographs, "--max-size", 60, "--out", tmp_path / "out") == 130
    assert said(capsys).splitlines()[-1] == "interrupted; the same command continues with the missing files"
    assert not list((tmp_path / "out").rglob("*.jpg"))


def test_stats_of_a_folder(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stats"
    assert call("stats", photographs, "--out", out) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{photographs}: 4 images of 2 classes, ")
    assert text.endswith(f"details: {out}/stats.json and stats.png\n")
    found = json.loads((out / "stats.json").read_text())
    assert [each["name"] for each in found["classes"]] == ["cat", "dog"]
    assert (found["width"]["50"], found["height"]["50"]) == (240, 180)
    pixels = np.stack([np.asarray(Image.open(path)) for path in photographs.rglob("*.jpg")]) / 255
    assert found["mean"] == pytest.approx(pixels.mean((0, 1, 2)), abs=2e-3), "decoders differ by a bit"
    assert found["std"] == pytest.approx(pixels.std((0, 1, 2)), abs=2e-3)
    assert Image.open(out / "stats.png").format == "PNG"


def test_stats_with_a_bad_image(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photographs / "cat" / "bad.jpg").write_bytes(b"no image")
    assert call("stats", photographs, "--out", tmp_path / "stats") == 1
    assert said(capsys).endswith("\nfix or remove it; `dataset check` lists all bad images")


def test_stats_of_five_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("cells", 20, "--out", tmp_path / "cells") == 0
    listing, out = tmp_path / "cells" / "train_list.txt", tmp_path / "stats"
    assert call("stats", listing, "--out", out) == 1
    *_, bad, hint = said(capsys).splitlines()
    assert bad == "… and 6 more"
    assert hint == "for images with 5 channels add --channels 5"
    assert not out.exists()
    assert call("stats", listing, "--out", out, "--channels", 1) == 1
    assert said(capsys).endswith("\nfor images with 5 channels add --channels 5")
    assert call("stats", listing, "--out", out, "--channels", 5, "--dtype", "uint16") == 0
    first = json.loads((out / "stats.json").read_text())
    paths = [tmp_path / "cells" / line.split()[0] for line in listing.read_text().splitlines()]
    pixels = np.stack([tifffile.imread(path) for path in paths]) / 65535
    assert first["mean"] == pytest.approx(pixels.mean((0, 1, 2)), rel=1e-9)
    assert first["std"] == pytest.approx(pixels.std((0, 1, 2)), rel=1e-9)
    root = f"DataLoader.Train.dataset.image_root={tmp_path}/cells"
    lists = f"DataLoader.Train.dataset.cls_label_path={listing}"
    config = ROOT / "configs" / "cells.yaml"
    assert call("stats", "-c", config, "-o", root, lists, "--out", out) == 0
    second = json.loads((out / "stats.json").read_text())
    assert second == {**first, "source": f"{tmp_path}/cells"}


def test_what_to_describe(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "stats"
    for arguments in ((), (images, "-c", "configs/cells.yaml")):
        assert call("stats", *arguments, "--out", out) == 1
        assert said(capsys) == "expected either a folder or list, or -c CONFIG"
    assert call("stats", images, "--out", out) == 1
    assert "dog/5.jpeg" in said(capsys)
    assert not out.exists()


@pytest.mark.parametrize("command", ["stats", "check"])
def test_what_can_not_be_written_is_told_before_images_are_read(
    command: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert call(command, images, "--out", file / "out") == 1
    assert said(capsys) == f"{file}: Not a directory", "not the bad image among them"
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o555)
    if not os.access(folder, os.W_OK):  # the superuser may write anywhere
        assert call(command, images, "--out", folder / "out") == 1
        assert said(capsys) == f"{folder}: can't be written"


def test_a_full_disk_names_the_folder_and_how_to_go_on(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ppcls.dataset_tools.resize.plan_resize", full)
    out = tmp_path / "small"
    assert call("resize", images, "--max-size", 9, "--out", out) == 1
    rest = "the same command continues with the missing files"
    assert said(capsys) == f"{out}: No space left on device; {rest}"
