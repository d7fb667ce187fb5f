"""``ppcls dataset`` as users call it: containers, splits, resized copies and statistics."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tifffile
from paths import ROOT
from PIL import Image
from skimage import data

from ppcls.cli.dataset import main
from ppcls.commands import command_line
from ppcls.data.index.class_names import read_class_names
from ppcls.data.index.records import LMDBDataset, RecordIODataset, TFRecordDataset, WebDataset
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
    """Six files in two class folders, with a list of them in reverse order."""
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


def run(*arguments: object) -> int:
    return main([str(each) for each in arguments])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("name", FORMATS)
def test_convert_writes_a_folder_and_skips_existing_shards(
    images: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for already in ("", ", 2 of which existed already"):
        assert run("convert", name, images, "--out", out, "--shards", 2) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"{out}: 6 images in 2 shards{already}; all verified"
    dataset = DATASETS[name](paths=(f"{out}/*{FORMATS[name].suffix}",), transform_ops=CHAIN, **_endings(name))
    index = dataset.read(2)
    assert index.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [index.read(i) for i in range(6)] == [b"image %d" % i for i in (0, 2, 4, 1, 3, 5)]
    assert read_class_names(out / "label_list.txt", 2) == ("cat", "dog")


def _endings(name: str) -> dict[str, tuple[str, ...]]:
    return {"extensions": (".jpeg",)} if name == "webdataset" else {}


def test_convert_writes_a_list_with_its_names(images: Path, tmp_path: Path) -> None:
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
    assert run("convert", "tfrecord", listing, "--out", out, *options) == 0
    index = TFRecordDataset(paths=(f"{out}/*.tfrecord",), transform_ops=CHAIN).read(2)
    assert [index.read(i) for i in range(6)] == [b"image %d" % i for i in (5, 4, 3, 2, 1, 0)]
    assert index.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert (out / "label_list.txt").read_text() == "0 cat\n1 dog\n"


def test_convert_uses_the_folder_of_a_list_as_image_root(images: Path, tmp_path: Path) -> None:
    arguments = ("recordio", images / "list.txt", "--out", tmp_path / "out", "--delimiter", "\t")
    assert run("convert", *arguments) == 0
    assert not (tmp_path / "out" / "label_list.txt").exists()


def test_convert_rejects_invalid_sources(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run("convert", "lmdb", tmp_path / "gone", "--out", out) == 2
    assert error_of(capsys) == (
        f"{tmp_path}/gone: no such folder or list file; expected a folder with one subfolder of images per "
        "class, or a list file of 'path label'"
    )
    assert run("convert", "lmdb", tmp_path / "gone.txt", "--out", out) == 2
    assert error_of(capsys) == f"{tmp_path}/gone.txt: no such list file; expected lines of 'path label'"
    assert run("convert", "lmdb", images / "list.txt", "--out", out) == 2
    assert "list.txt, line 1: expected 'path label', got no label after ' '" in error_of(capsys)
    assert run("convert", "lmdb", images, "--out", out, "--shards", 7) == 2
    assert error_of(capsys).startswith(
        "--shards: expected at most one shard per image, got 7 shards for 6 images"
    )
    (images / "noending").write_bytes(b"x")
    (images / "list.txt").write_text("noending 0\n")
    assert run("convert", "webdataset", images / "list.txt", "--out", out) == 2
    assert error_of(capsys).endswith("WebDataset needs file names with a suffix such as .jpg; rename files")
    (images / "list.txt").write_text("cat/0.jpeg -1\n")
    assert run("convert", "lmdb", images / "list.txt", "--out", out) == 2
    assert error_of(capsys).endswith("list.txt, line 1: expected a label >= 0, got -1")
    assert not out.exists()


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "²"])
def test_convert_rejects_an_invalid_number_of_shards(
    images: Path, tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--shards", "--shard-size"):
        with pytest.raises(SystemExit):
            run("convert", "lmdb", images, "--out", tmp_path / "out", f"{option}={value}")
        assert f"argument {option}: expected an integer > 0, got '{value}'" in capsys.readouterr().err


def test_interrupted_convert_prints_how_to_continue(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ppcls.dataset_tools.convert.convert", interrupt)
    assert run("convert", "lmdb", images, "--out", tmp_path / "out") == 130
    last = error_of(capsys).splitlines()[-1]
    assert last == "interrupted; run the same command again to continue"


def test_index_writes_new_files_and_keeps_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.tar", "b.tfrecord", "c.rec")]
    for path, container in zip(paths, ("webdataset", "tfrecord", "recordio"), strict=True):
        FORMATS[container].write(path, [ImageRecord("0.jpg", b"image", 3)])
    indexes = [path.with_suffix(".idx") for path in paths]
    for word in ("written", "exists already"):
        assert run("index", *paths) == 0
        assert capsys.readouterr().out == "".join(f"{index}: {word}\n" for index in indexes)
    indexes[1].write_text("mine")
    assert run("index", *paths) == 2
    assert error_of(capsys) == f"{indexes[1]}: a different index exists already; delete it to write a new one"
    assert indexes[1].read_text() == "mine"


def test_index_needs_a_format_without_a_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train-00000-of-01024"
    FORMATS["tfrecord"].write(path, [ImageRecord("0.jpg", b"image", 3)])
    assert run("index", path) == 2
    assert error_of(capsys).endswith("--format")
    assert run("index", "--format", "tfrecord", path) == 0
    assert (tmp_path / "train-00000-of-01024.idx").exists()
    assert run("index", "--format", "lmdb", tmp_path) == 2
    assert error_of(capsys) == f"{tmp_path}: LMDB needs no index file"
    assert run("index", "--format", "recordio", path) == 2
    assert "byte 0: expected the magic number" in error_of(capsys)
    assert run("index", tmp_path / "gone.tar") == 2
    assert "gone.tar" in error_of(capsys)


def test_index_rejects_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.lmdb"
    FORMATS["lmdb"].write(path, [ImageRecord("0.jpg", b"image", 3)])
    for given in ([path], [path / "data.mdb"], ["--format", "webdataset", path]):
        assert run("index", *given) == 2
        assert error_of(capsys) == f"{given[-1]}: LMDB needs no index file"
    for given in ([tmp_path], ["--format", "webdataset", tmp_path]):
        assert run("index", *given) == 2
        message = error_of(capsys)
        assert message.startswith(f"{tmp_path}: ")
        assert message.endswith(f"such as {tmp_path}/*.tar")


@pytest.mark.parametrize("command", [["split"], ["stats"], ["convert", "lmdb"], ["check"]])
def test_container_is_rejected_as_a_source(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.tar"
    FORMATS["webdataset"].write(path, [ImageRecord("0.jpg", b"image", 3)])
    assert run(*command, path, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert f"error: {path}: expected " in error
    assert "found a container" in error
    assert not (tmp_path / "out").exists()


def test_split_of_a_folder_has_all_large_classes_in_both_lists(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lists"
    assert run("split", images, "--val", 2, "--seed", 3, "--out", out) == 0
    assert capsys.readouterr().out == f"{out}: 4 images for training, 2 for validation\n"
    lines = {name: (out / f"{name}_list.txt").read_text().splitlines() for name in ("train", "val")}
    assert [each.partition("/")[0] for each in lines["val"]] == ["cat", "dog"]
    assert len(set(lines["train"] + lines["val"])) == 6
    assert (out / "label_list.txt").read_text() == "0 cat\n1 dog\n"
    assert run("split", images, "--out", out) == 2
    assert error_of(capsys) == f"{out} exists already; nothing was written; choose another folder with --out"
    (images / "lone").mkdir()
    (images / "lone" / "1.jpg").touch()
    assert run("split", images, "--val", 2, "--out", tmp_path / "more") == 0
    assert capsys.readouterr().out.endswith("classes without validation images: 2 (lone)\n")


@pytest.mark.parametrize("delimiter", ["\t", r"\t"])
def test_check_reads_lists(
    delimiter: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (8, 8)).save(images / "good.png")
    listing = tmp_path / "list.txt"
    listing.write_text(f"{images}/good.png\t0\nmissing.jpg\t1\n")
    options = ("--image-root", images, "--delimiter", delimiter, "--out", tmp_path / "bad.txt")
    assert run("check", listing, images / "good.png", *options) == 2
    error = capsys.readouterr().err
    assert "1 of 3 images are bad" in error
    assert f"{images}/missing.jpg ({listing}, line 2): no such file or directory" in error


def test_split_of_a_list_keeps_its_delimiter(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lists"
    (images / "bird.jpeg").touch()
    with (images / "list.txt").open("a") as file:
        file.write("bird.jpeg\t2\n")
    options = ("--delimiter", "\t", "--val", "1/3", "--out", out)
    assert run("split", images / "list.txt", *options) == 0
    assert capsys.readouterr().out == (
        f"{out}: 5 images for training, 2 for validation\nclasses without validation images: 2\n"
    )
    assert "bird.jpeg\t2\n" in (out / "train_list.txt").read_text()
    assert not (out / "label_list.txt").exists()


@pytest.mark.parametrize("value", ["0", "1.0", "-0.1", "1/0", "x", "nan"])
def test_split_rejects_invalid_shares(
    images: Path, tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("split", images, "--out", tmp_path / "out", f"--val={value}")
    assert f"expected a share such as 0.2, or an integer > 0, got '{value}'" in capsys.readouterr().err
    assert run("split", images, "--out", tmp_path / "out", "--val", "0.9") == 2
    assert error_of(capsys).startswith("--val: expected 1 to 4 of 6 images for validation, got 5")
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


def test_resize_reports_files_and_sizes(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    arguments = ("resize", photographs, "--max-size", 60, "--quality", 80, "--out", out)
    assert run(*arguments) == 0
    files, sizes = capsys.readouterr().out.splitlines()
    assert files == f"{out}: 4 images shrunk, 0 copied unchanged, 0 existed already; 1 other file copied"
    before, after = (
        sum(path.stat().st_size for path in folder.rglob("*.jpg")) for folder in (photographs, out)
    )
    ratio = f"{before / after:.2f}"
    assert sizes == f"images: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after, {ratio} times smaller"
    assert before > 3 * after
    assert run(*arguments) == 0
    assert "0 images shrunk, 0 copied unchanged, 4 existed already" in capsys.readouterr().out


def test_resize_reports_a_bad_image_and_copies_the_others(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photographs / "cat" / "bad.jpg").write_bytes(b"no image")
    out = tmp_path / "small"
    assert run("resize", photographs, "--max-size", 60, "--out", out) == 2
    shown = capsys.readouterr()
    assert "4 images shrunk" in shown.out
    assert shown.err[shown.err.index("error: ") :].splitlines() == [
        f"error: 1 bad image was not copied to {out}",
        f"  {photographs}/cat/bad.jpg ({photographs}): not an image that can be decoded",
    ]


@pytest.mark.parametrize("option", ["--quality=0", "--quality=101", "--quality=x", "--max-size=0"])
def test_resize_rejects_invalid_numbers(
    photographs: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("resize", photographs, "--max-size=9", "--out", tmp_path / "out", option)
    assert f"argument {option.partition('=')[0]}: expected an integer" in capsys.readouterr().err


def test_interrupted_resize_prints_how_to_continue(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ppcls.dataset_tools.resize.shrink", interrupt)
    assert run("resize", photographs, "--max-size", 60, "--out", tmp_path / "out") == 130
    assert error_of(capsys).splitlines()[-1] == "interrupted; run the same command again to continue"
    assert not list((tmp_path / "out").rglob("*.jpg"))


def test_stats_of_a_folder_are_written_as_json_and_png(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "stats"
    assert run("stats", photographs, "--out", out) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{photographs}: 4 images of 2 classes, ")
    assert text.endswith(f"details: {out}/stats.json and stats.png\n")
    found = json.loads((out / "stats.json").read_text())
    assert [each["name"] for each in found["classes"]] == ["cat", "dog"]
    assert (found["width"]["50"], found["height"]["50"]) == (240, 180)
    pixels = np.stack([np.asarray(Image.open(path)) for path in photographs.rglob("*.jpg")]) / 255
    assert found["mean"] == pytest.approx(pixels.mean((0, 1, 2)), abs=2e-3), "decoders differ slightly"
    assert found["std"] == pytest.approx(pixels.std((0, 1, 2)), abs=2e-3)
    assert Image.open(out / "stats.png").format == "PNG"


def test_stats_skip_bad_images_and_list_them(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("stats", photographs, "--out", tmp_path / "good") == 0
    (photographs / "cat" / "bad.jpg").write_bytes(b"no image")
    assert run("stats", photographs, "--out", tmp_path / "stats") == 0
    assert "warning: skipped 1 bad image, which the statistics do not include" in capsys.readouterr().err
    expected = json.loads((tmp_path / "good" / "stats.json").read_text())
    found = json.loads((tmp_path / "stats" / "stats.json").read_text())
    assert [Path(image["name"]).name for image in found.pop("bad_images")] == ["bad.jpg"]
    assert expected.pop("bad_images") == []
    assert found == expected


def test_stats_without_a_readable_image_suggest_check(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for image in photographs.rglob("*.jpg"):
        image.write_bytes(b"no image")
    assert run("stats", photographs, "--out", tmp_path / "stats") == 2
    check = command_line("dataset", "check", photographs)
    assert error_of(capsys).endswith(f"\n  fix or remove it; `{check}` lists all bad images")


def test_stats_of_five_channels_are_the_same_from_list_and_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cells", 20, "--out", tmp_path / "cells") == 0
    listing, out = tmp_path / "cells" / "train_list.txt", tmp_path / "stats"
    assert run("stats", listing, "--out", out) == 2
    *_, bad, hint = error_of(capsys).splitlines()
    assert "found 5 channels" in bad or bad.startswith("… and ")
    assert hint == "  for images with 5 channels add --channels 5"
    assert not out.exists()
    assert run("stats", listing, "--out", out, "--channels", 1) == 2
    assert error_of(capsys).endswith("\n  for images with 5 channels add --channels 5")
    assert run("stats", listing, "--out", out, "--channels", 5, "--dtype", "uint16") == 0
    first = json.loads((out / "stats.json").read_text())
    paths = [tmp_path / "cells" / line.split()[0] for line in listing.read_text().splitlines()]
    pixels = np.stack([tifffile.imread(path) for path in paths]) / 65535
    assert first["mean"] == pytest.approx(pixels.mean((0, 1, 2)), rel=1e-9)
    assert first["std"] == pytest.approx(pixels.std((0, 1, 2)), rel=1e-9)
    root = f"DataLoader.Train.dataset.image_root={tmp_path}/cells"
    lists = f"DataLoader.Train.dataset.cls_label_path={listing}"
    config = ROOT / "configs" / "cells.yaml"
    assert run("stats", "-c", config, "-o", root, lists, "--out", out) == 0
    second = json.loads((out / "stats.json").read_text())
    assert second == {**first, "source": f"{tmp_path}/cells"}


def test_stats_need_either_a_source_or_a_config(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "stats"
    for arguments in ((), (images, "-c", "configs/cells.yaml")):
        assert run("stats", *arguments, "--out", out) == 2
        assert error_of(capsys) == "expected either a folder or list file, or -c CONFIG"
    assert run("stats", images, "--out", out) == 2
    assert "not an image that can be decoded" in error_of(capsys)
    assert not out.exists()


@pytest.mark.parametrize("command", ["stats", "check"])
def test_output_that_cannot_be_written_is_reported_before_images_are_read(
    command: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run(command, images, "--out", file / "out") == 2
    assert error_of(capsys) == f"{file}: Not a directory", "the bad image is not reached"
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o555)
    if not os.access(folder, os.W_OK):  # root can write anywhere
        assert run(command, images, "--out", folder / "out") == 2
        assert error_of(capsys) == f"{folder}: can't be written"


def test_full_disk_names_the_folder_and_how_to_continue(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ppcls.dataset_tools.resize.plan_resize", full)
    out = tmp_path / "small"
    assert run("resize", images, "--max-size", 9, "--out", out) == 2
    rest = "run the same command again to continue"
    assert error_of(capsys) == f"{out}: No space left on device; {rest}"


@pytest.mark.parametrize("command", [["stats"], ["split"], ["convert", "tfrecord"]])
@pytest.mark.parametrize("out", ["images/lists", "images", "images/a/lists", "link/lists"])
def test_output_inside_the_images_is_rejected(
    command: list[str],
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path("images", name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(Path("images", name, "1.png"))
    Path("link").symlink_to("images")
    assert main([*command, "images", "--out", out]) == 2
    assert error_of(capsys).startswith(f"--out {out}: is inside the images images")
    assert sorted(path.as_posix() for path in Path("images").rglob("*.*")) == [
        "images/a/1.png",
        "images/b/1.png",
    ]
