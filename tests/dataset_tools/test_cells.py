"""Drawn cells with five channels, and training on them with each loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
from paths import ROOT

from ppcls.cli import dataset as dataset_cli
from ppcls.cli import train as cli
from ppcls.dataset_tools.cells import NAMES, draw_cell, make_cells

CONFIG = ROOT / "configs" / "cells.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "cells"
    assert make_cells(path, count=40, seed=0)
    return path


def test_make_cells_writes_images_and_lists(folder: Path) -> None:
    lines = [(folder / name).read_text().splitlines() for name in ("train_list.txt", "val_list.txt")]
    assert [len(each) for each in lines] == [32, 8]
    for line in lines[0] + lines[1]:
        path, label = line.split(" ")
        pixels = tifffile.imread(folder / path)
        assert (pixels.shape, pixels.dtype) == ((50, 50, 5), np.uint16)
        assert path.startswith(f"images/{label}/")
    assert (folder / "label_list.txt").read_text().split()[1::2] == list(NAMES)


def test_cells_differ_by_class_only_in_fifth_channel() -> None:
    cells = [draw_cell(label, np.random.default_rng(1)) for label in range(len(NAMES))]
    similar = [
        [np.corrcoef(a[:, :, k].ravel(), b[:, :, k].ravel())[0, 1] for k in range(5)]
        for a in cells
        for b in cells
        if a is not b
    ]
    assert np.min(similar, axis=0)[:4].min() > 0.9
    assert np.max(similar, axis=0)[4] < 0.8


def test_make_cells_is_deterministic(folder: Path, tmp_path: Path) -> None:
    assert dataset_cli.main(["cells", "40", "--out", str(tmp_path / "cells")]) == 0
    for path in folder.rglob("*.tif"):
        assert (tmp_path / "cells" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    assert not make_cells(folder, count=40, seed=0)


@pytest.mark.parametrize(
    ("device", "use_dali"),
    [
        pytest.param(
            "cpu", True, id="dali-cpu", marks=pytest.mark.slow
        ),  # 11 s; other tests read such images
        pytest.param("cpu", False, id="paddle", marks=pytest.mark.slow),
        pytest.param("gpu", True, id="dali-gpu", marks=pytest.mark.gpu),
    ],
)
def test_cells_can_be_learned(folder: Path, tmp_path: Path, device: str, use_dali: bool) -> None:
    train = "DataLoader.Train"
    overrides = {
        "Global.output_dir": tmp_path / "run",
        "Global.device": device,
        "Global.use_dali": use_dali,
        "Global.epochs": 12,
        "Global.eval_during_train": False,
        "Global.print_batch_step": 1,
        "Optimizer.lr.warmup_epoch": 0,
        "Optimizer.lr.learning_rate": 0.005,
        f"{train}.dataset.image_root": folder,
        f"{train}.dataset.cls_label_path": folder / "train_list.txt",
        f"{train}.dataset.transform_ops.1.RandCropImage.size": 32,
        f"{train}.dataset.transform_ops.1.RandCropImage.scale": [1, 1],
        f"{train}.dataset.transform_ops.1.RandCropImage.ratio": [1, 1],
        f"{train}.sampler.batch_size": 32,
        f"{train}.loader.num_workers": 0,
    }
    assert cli.train(["-c", str(CONFIG), "-o", *(f"{key}={value}" for key, value in overrides.items())]) == 0
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert len(losses) == 12
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
