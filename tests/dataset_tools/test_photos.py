from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppcls.cli import dataset as dataset_cli
from ppcls.dataset_tools import photos
from ppcls.dataset_tools.photos import find_sources, make_photos


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "photos"
    assert make_photos(path, images=40, classes=8, seed=1)
    return path


def test_photos_have_imagenets_size(folder: Path) -> None:
    files = sorted(folder.glob("images/*/*.jpg"))
    assert len(files) == 40
    assert 80_000 < np.mean([path.stat().st_size for path in files]) < 140_000
    shapes = set()
    for path in files:
        with Image.open(path) as image:
            assert image.mode == "RGB"
            shapes.add(image.size)
    assert shapes == {(500, 375), (375, 500)}


def test_photos_lists_cover_each_class(folder: Path) -> None:
    lines = [(folder / name).read_text().splitlines() for name in ("train_list.txt", "val_list.txt")]
    assert [len(part) for part in lines] == [32, 8]
    for part in lines:
        assert {line.split(" ")[1] for line in part} == set("01234567")
        assert all((folder / line.split(" ")[0]).is_file() for line in part)
    names = (folder / "label_list.txt").read_text().splitlines()
    assert names[0] == "0 astronaut plain"
    assert len(names) == 8


def test_make_photos_depends_only_on_the_seed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    make_photos(tmp_path / "same", images=40, classes=8, seed=1)
    assert contents(folder) == contents(tmp_path / "same")
    make_photos(tmp_path / "other", images=16, classes=8, seed=2)
    first = "images/00/000000.jpg"
    assert contents(tmp_path / "other")[first] != contents(folder)[first]


def test_make_photos_gives_each_class_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "_write_all", lambda jobs: None)
    classes = len(find_sources()) * len(photos.TREATMENTS)
    make_photos(tmp_path / "photos", images=2 * classes, classes=classes)
    names = (tmp_path / "photos" / "label_list.txt").read_text().splitlines()
    assert len({line.split(" ", 1)[1] for line in names}) == classes


def test_treatments_differ_and_keep_the_range() -> None:
    pixels = np.random.default_rng(0).uniform(0, 255, (4, 5, 3)).astype(np.float32)
    results = [treat(pixels) for treat in photos.TREATMENTS.values()]
    assert all(each.shape == pixels.shape and each.min() >= 0 and each.max() <= 255 for each in results)
    assert len({each.tobytes() for each in results}) == len(results)


def test_photos_command_creates_a_dataset_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["photos", "16", "--out", "p"]
    assert dataset_cli.main(command) == 0
    assert "p: 16 photographs, " in capsys.readouterr().out
    assert dataset_cli.main(command) == 0
    assert capsys.readouterr().out == "p: the photographs exist already\n"
    assert dataset_cli.main([*command, "--seed", "3"]) == 2
    error = "error: p was created with other settings: seed was 0 and is now 3; "
    error += "remove the folder, or choose another one with --out\n"
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["15"], "images: expected at least 16, two per class, got 15"),
        (["99", "--classes", "1"], "--classes: expected 2 to 32, got 1"),
        (["99", "--classes", "33"], "--classes: expected 2 to 32, got 33"),
        (["99", "--seed", "-1"], "--seed: expected 0 or more, got -1"),
    ],
)
def test_photos_command_rejects_numbers_out_of_range(
    tmp_path: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dataset_cli.main(["photos", *arguments, "--out", str(tmp_path / "p")]) == 2
    assert capsys.readouterr().err == f"error: {text}\n"
    assert list(tmp_path.iterdir()) == []


def test_photos_command_reports_missing_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photos, "SOURCES", ("absent.png",))
    assert dataset_cli.main(["photos", "16", "--out", str(tmp_path / "p")]) == 2
    text = "expected photographs of scikit-image such as absent.png, found none"
    assert text in capsys.readouterr().err


def test_photos_command_reports_missing_scikit_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert dataset_cli.main(["photos", "16", "--out", str(tmp_path / "p")]) == 2
    assert "pip install scikit-image" in capsys.readouterr().err
