"""Files that a folder scan skips are counted and named, by ``ppcls dataset check`` too."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from ppcls.cli.dataset import main
from ppcls.dataset_tools.check import describe_unused


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for name in ("cat", "dog", "empty"):
        (root / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "cat" / "1.png")
    Image.new("RGB", (8, 8)).save(root / "dog" / "1.PNG")
    for name in ("a.gif", "b.GIF", "c.heic", "README", ".hidden"):
        (root / "cat" / name).touch()
    return root


def test_describe_unused_counts_endings_and_names_empty_folders(pictures: Path) -> None:
    assert describe_unused(pictures) == [
        f"{pictures}: skipped files that are not images of a known format: "
        "2 .gif, 1 .heic, 1 without an ending; to use the pictures in .gif, .heic, convert them to JPEG or "
        "PNG",
        f"{pictures}: no images in empty",
    ]
    assert describe_unused(pictures / "dog") == []


def test_check_prints_skipped_files(pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(pictures), "--out", str(pictures.parent / "bad.txt")]) == 0
    out = capsys.readouterr().out
    assert "2 .gif, 1 .heic, 1 without an ending; to use" in out
    assert f"{pictures}: no images in empty\n" in out
    assert out.endswith("all 2 images can be decoded\n")
