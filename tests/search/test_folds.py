"""Cross-validation: stratified folds, and the report of all runs."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_config import TRAIN

from ppcls.cli import train as cli
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.report.stored_evaluation import (
    EVALUATION_FILE,
    StoredEvaluation,
    read_evaluation,
    store_evaluation,
)
from ppcls.search.folds import describe_rare_classes, read_images, split_folds, write_folds
from ppcls.search.trials import last_lines

SMALL = {"Global__use_dali": False, "Global__epochs": 1}


def test_each_image_is_held_out_once_and_classes_are_shared_equally() -> None:
    labels = np.repeat([0, 1, 2], [10, 20, 5])
    masks = split_folds(labels, 5, seed=3)
    np.testing.assert_array_equal(np.sum(masks, axis=0), 1)
    for mask in masks:
        np.testing.assert_array_equal(np.bincount(labels[mask]), [2, 4, 1])
    assert not np.array_equal(masks, split_folds(labels, 5, seed=4))


def test_several_labels_are_split_at_random() -> None:
    masks = split_folds(np.ones([7, 3], np.float32), 3, seed=0)
    assert sorted(int(mask.sum()) for mask in masks) == [2, 2, 3]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(2, 6), st.integers(0, 9), st.booleans()
)
def test_folds_of_any_classes(sizes: list[int], folds: int, seed: int, several: bool) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if len(labels) < folds:
        with pytest.raises(UserError, match=f"--folds {folds}: the data set has only {len(labels)} image"):
            split_folds(labels, folds, seed)
        return
    masks = split_folds(np.eye(len(sizes))[labels] if several else labels, folds, seed)
    np.testing.assert_array_equal(np.sum(masks, axis=0), 1)
    totals = [int(mask.sum()) for mask in masks]
    assert max(totals) - min(totals) <= 1
    if not several:
        counts = np.array([np.bincount(labels[mask], minlength=len(sizes)) for mask in masks])
        assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()


def test_rare_classes_are_named() -> None:
    labels = np.array([0] * 9 + [1] * 2 + [2])
    assert describe_rare_classes(labels, 2, ["a", "b", "c"]).endswith("lack: c (1)")
    assert describe_rare_classes(labels, 3, []).endswith("lack: 1 (2), 2 (1)")
    assert describe_rare_classes(labels[:9], 3, []) == ""


def test_folds_of_random_parts_split_the_whole_folder(make_config, images: Path, tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(4):
            shutil.copy(images / "eval 0.jpg", tmp_path / "pets" / name / f"{number}.jpg")
    folder = {"name": "ImageFolderDataset", "image_root": str(tmp_path / "pets")}
    config = make_config(Arch__class_num=2, **SMALL)
    tree = config.model_dump(mode="json")
    for part, name in (("train", "Train"), ("val", "Eval")):
        chain = tree["DataLoader"][name]["dataset"]["transform_ops"]
        tree["DataLoader"][name]["dataset"] = {**folder, "part": part, "transform_ops": chain}
    split = load_config(tree).DataLoader.need_train()
    dataset = split.dataset.unsplit()
    index = read_images(dataset, 2)
    files = write_folds(tree, dataset, index, split_folds(index.labels, 2, 0), tmp_path)
    held_out = [(tmp_path / f"fold_{number}_eval.txt").read_text().splitlines() for number in (1, 2)]
    assert sorted(line for lines in held_out for line in lines) == [
        f"{name}/{n}.jpg {k}" for k, name in enumerate(("cats", "dogs")) for n in range(4)
    ]
    assert [load_config(file).Global.output_dir for file in files] == [
        str(tmp_path / f"fold_{n}") for n in (1, 2)
    ]


def rows_of(run: Path) -> list[list[str]]:
    return list(csv.reader((run / "confusion.csv").read_text("utf-8-sig").splitlines()))[1:]


@pytest.mark.slow
def test_report_has_mean_and_deviation_of_all_folds(make_yaml, tmp_path: Path, capsys) -> None:
    assert cli.train(["-c", str(make_yaml(**SMALL)), "--folds", "2"]) == 0
    text = capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "folds.json").read_text())
    top1 = found["folds"]["top1"]
    assert len(top1) == 2
    assert f"top1 {np.mean(top1):.4f} ± {np.std(top1, ddof=1):.4f}" in text
    assert "fold 2 of 2: top1 " in text
    (_, *names), *rows = csv.reader((tmp_path / "run" / "confusion.csv").read_text("utf-8-sig").splitlines())
    matrix = np.array([[int(cell) for cell in cells] for _, *cells in rows])
    assert matrix.shape == (len(names), len(names))
    assert matrix.sum() == TRAIN, "each image is held out once"
    images = [
        sum(int(c) for _, *cells in rows_of(tmp_path / "run" / f"fold_{n}") for c in cells) for n in (1, 2)
    ]
    assert matrix.trace() / TRAIN == pytest.approx(np.average(top1, weights=images))
    page = (tmp_path / "run" / "folds.html").read_text()
    assert "<table id=confusion>" in page
    assert f"<td>{np.mean(top1):.4f}</td>" in page
    assert (tmp_path / "run" / "fold_2" / "best_model").is_dir()


@pytest.mark.slow
def test_confusion_of_resumed_folds_is_that_of_the_best_evaluations(make_yaml, tmp_path: Path) -> None:
    """A run that is killed between an evaluation and its report keeps the matrix of an earlier evaluation."""
    words = ["-c", str(make_yaml(**SMALL)), "--folds", "2", "-o", "Global.checkpoints=auto"]
    assert cli.train(words) == 0
    expected = rows_of(tmp_path / "run")
    first = tmp_path / "run" / "fold_1"
    header, *rows = (first / "confusion.csv").read_text("utf-8-sig").splitlines()
    wrong = [f"{row.partition(',')[0]}{',9' * row.count(',')}" for row in rows]
    (first / "confusion.csv").write_text("\n".join([header, *wrong, ""]))
    store_evaluation(first / EVALUATION_FILE, replace(read(first), update=0))
    assert cli.train(words) == 0
    assert rows_of(tmp_path / "run") == expected
    assert rows_of(first) != [row.split(",") for row in wrong]


def read(run: Path) -> StoredEvaluation:
    stored = read_evaluation(run / EVALUATION_FILE)
    assert stored is not None
    return stored


def test_failing_fold_is_an_error_with_its_log(make_yaml, tmp_path: Path, capsys) -> None:
    config = make_yaml(**SMALL, Global__pretrained_model=str(tmp_path / "gone.pdparams"))
    assert cli.train(["-c", str(config), "--folds", "2"]) == 2
    error = capsys.readouterr().err
    assert "--folds: fold 1 failed: " in error
    assert "gone.pdparams" in error


def test_output_folder_that_is_removed_during_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"folds: this output folder was renamed or removed while a run"):
        last_lines(tmp_path / "folds" / "fold_1.log")
