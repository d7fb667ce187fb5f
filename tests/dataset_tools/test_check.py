"""``dataset check``: lists the images at which training would fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from zoo import make_zoo

import ppcls.dataset_tools.check
from ppcls.cli import dataset as dataset_cli
from ppcls.data.bad_images.lists import BadImage, read_bad_images, write_bad_images
from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.index.protocol import Index
from ppcls.data.transforms.base import Transform
from ppcls.dataset_tools import jobs


@pytest.fixture
def folder(photos: dict[str, Path], tmp_path: Path) -> Path:
    """Six good images in two classes, and two bad ones, with their list and config."""
    root = tmp_path / "images"
    for label, names in enumerate(
        (("jpeg420-odd", "png-odd", "alpha-odd"), ("grey-odd", "tiff-odd", "bmp-odd"))
    ):
        (root / str(label)).mkdir(parents=True)
        for name in names:
            shutil.copy(photos[name], root / str(label) / photos[name].name)
    zoo = make_zoo()
    (root / "0" / "half ü.jpg").write_bytes(zoo["half a jpeg"])
    (root / "1" / "cells.tif").write_bytes(zoo["uint16 tiff of 5"])
    dataset = {
        "name": "ImageFolderDataset",
        "image_root": str(root),
        "transform_ops": [{"DecodeImage": None}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": None}],
    }
    config = {
        "Arch": {"name": "ResNet18", "class_num": 2},
        "Optimizer": {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 0.1}},
        "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
        "DataLoader": {"Train": {"dataset": dataset, "sampler": {"batch_size": 2}}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def check(folder: Path, *arguments: str) -> int:
    return dataset_cli.main(["check", *arguments, "--out", str(folder / "bad.txt")])


def expected(folder: Path) -> list[BadImage]:
    root = folder / "images"
    return [
        BadImage(
            f"{root}/0/half ü.jpg",
            str(root),
            "the JPEG file is truncated: its end is missing; copy it again",
        ),
        BadImage(f"{root}/1/cells.tif", str(root), "expected 3 channels, found 5 channels"),
    ]


def test_check_lists_bad_images_of_config(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder, "-c", str(folder / "config.yaml")) == 2
    assert read_bad_images(folder / "bad.txt") == expected(folder)
    said = capsys.readouterr()
    first, *lines = said.err[said.err.index("error: ") :].splitlines()
    assert first == f"error: 2 of 8 images are bad; {folder}/bad.txt lists them"
    assert lines == [f"  {each}" for each in expected(folder)]
    assert said.out == ""


def test_check_lists_bad_images_of_folder(folder: Path) -> None:
    assert check(folder, str(folder / "images")) == 2
    assert read_bad_images(folder / "bad.txt") == expected(folder)


def test_check_reports_pipe_as_bad(folder: Path) -> None:
    os.mkfifo(folder / "images" / "1" / "pipe.jpg")
    assert check(folder, str(folder / "images")) == 2
    (bad,) = {each.reason for each in read_bad_images(folder / "bad.txt") if each.name.endswith("pipe.jpg")}
    assert bad == "not a regular file"


def test_interrupted_check_writes_new_list_only(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(index: Index, decoder: Transform, positions: Sequence[int]) -> dict[int, str]:
        if positions[0] == 5:
            raise KeyboardInterrupt
        return find_undecodable(index, decoder, positions)

    monkeypatch.setattr(ppcls.dataset_tools.check, "find_undecodable", look)
    monkeypatch.setattr(jobs, "_CHUNK", 4)
    assert check(folder, str(folder / "images")) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"interrupted; {folder}/bad.txt lists the 1 bad image among the first 5"
    assert read_bad_images(folder / "bad.txt") == expected(folder)[:1]
    write_bad_images(folder / "bad.txt", expected(folder))
    assert check(folder, str(folder / "images")) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; nothing was written"
    assert read_bad_images(folder / "bad.txt") == expected(folder)


def test_check_uses_the_decoder_of_config(folder: Path) -> None:
    option = "DataLoader.Train.dataset.transform_ops.0.DecodeImage"
    normalize = "DataLoader.Train.dataset.transform_ops.2.NormalizeImage"
    overrides = [
        f"{option}={{channels: 5, dtype: uint16}}",
        f"{normalize}={{scale: 1.0, mean: [0.5], std: [0.5]}}",
    ]
    overrides.append("Arch.input_image_channel=5")
    assert check(folder, "-c", str(folder / "config.yaml"), "-o", *overrides) == 2
    bad = read_bad_images(folder / "bad.txt")
    assert len(bad) == 7
    assert {Path(each.name).name for each in bad}.isdisjoint({"cells.tif"})


def test_check_without_bad_images_writes_empty_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "images/0/half ü.jpg").unlink()
    (folder / "images/1/cells.tif").unlink()
    (folder / "bad.txt").write_text("an older list")
    assert check(folder, "-c", str(folder / "config.yaml"), "--split", "Train") == 0
    assert capsys.readouterr().out == "all 6 images can be decoded\n"
    assert read_bad_images(folder / "bad.txt") == []


def test_check_rejects_contradicting_arguments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder) == 2
    assert "error: expected either files and folders to check, or -c CONFIG" in capsys.readouterr().err
    assert check(folder, "-c", str(folder / "config.yaml"), "--split", "Eval") == 2
    assert "DataLoader.Eval is not set; nothing to check" in capsys.readouterr().err
    assert not (folder / "bad.txt").exists()
