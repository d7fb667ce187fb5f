from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ppcls.cli import dataset as dataset_cli
from ppcls.dataset_tools.digits import make_digits
from ppcls.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "digits"
    assert make_digits(path)
    return path


def read_list(path: Path) -> list[tuple[str, int]]:
    pairs = [line.split(" ") for line in path.read_text().splitlines()]
    return [(name, int(label)) for name, label in pairs]


def test_digits_lists_are_disjoint_and_stratified(folder: Path) -> None:
    train, val = read_list(folder / "train_list.txt"), read_list(folder / "val_list.txt")
    names = [name for name, _ in train + val]
    assert len(set(names)) == len(names) == 1797
    assert {str(path.relative_to(folder)) for path in folder.glob("images/*/*.jpg")} == set(names)
    for label in range(10):
        ours = [sum(each == label for _, each in part) for part in (train, val)]
        assert ours[1] / sum(ours) == pytest.approx(0.2, abs=0.01)
    assert all(name.startswith(f"images/{label}/") for name, label in train + val)


def test_digits_label_list_has_names(folder: Path) -> None:
    lines = (folder / "label_list.txt").read_text().splitlines()
    assert (len(lines), lines[0], lines[9]) == (10, "0 zero", "9 nine")


def test_digits_survive_jpeg(folder: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    for index in range(0, 1797, 100):
        with Image.open(folder / f"images/{digits.target[index]}/{index:04}.jpg") as image:
            assert image.size == (32, 32)
            pixels = np.asarray(image.convert("RGB"), float)
        assert np.ptp(pixels, axis=2).max() <= 2, "grey"
        back = pixels.mean(axis=2).reshape(8, 4, 8, 4).mean(axis=(1, 3)) * (16 / 255)
        assert np.corrcoef(back.ravel(), digits.images[index].ravel())[0, 1] > 0.97


def test_make_digits_is_deterministic(folder: Path, tmp_path: Path) -> None:
    make_digits(tmp_path / "again")

    def contents(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    assert contents(folder) == contents(tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_make_digits_keeps_existing_dataset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder.stat().st_mtime_ns
    assert not make_digits(folder)
    assert dataset_cli.main(["digits", "--out", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: the digits exist already\n"
    assert folder.stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [None, "mine.jpg"])
def test_make_digits_keeps_existing_folders(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / content).touch()
    with pytest.raises(UserError, match=f"{tmp_path} already exists.*; choose another folder with --out"):
        make_digits(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ([content] if content else [])


def test_make_digits_rejects_dataset_with_other_settings(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text("{}\n")
    with pytest.raises(
        UserError, match=r"was created with other settings: data set was None and is now digits"
    ):
        make_digits(tmp_path)


def test_failed_make_digits_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **named: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("ppcls.dataset_tools.make_dataset.write_lists", fail)
    assert dataset_cli.main(["digits", "--out", str(tmp_path / "deep" / "digits")]) == 2
    assert list((tmp_path / "deep").iterdir()) == []
