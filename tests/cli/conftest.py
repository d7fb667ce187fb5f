"""A small data set, a config and weights for it, and a check for commands that must fail."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paddle
import pytest
import yaml
from paddle import nn

from ppcls.registry import ARCHITECTURES

CLASSES = 3


def build_linear(class_num: int, data_format: str, input_image_channel: int) -> nn.Layer:
    return nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * input_image_channel, class_num))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Folder of 9 images, listed in ``list.txt``."""
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for i in range(9):
        cv2.imwrite(str(folder / f"{i}.jpg"), rng.integers(0, 256, (12, 10, 3)).astype(np.uint8))
    (folder / "list.txt").write_text("".join(f"{i}.jpg {i % CLASSES}\n" for i in range(9)))
    return folder


@pytest.fixture
def config(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config of a linear model on these images."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setitem(ARCHITECTURES._entries, "Linear", build_linear)
    split = {
        "dataset": {
            "name": "ImageNetDataset",
            "image_root": str(images),
            "cls_label_path": str(images / "list.txt"),
            "transform_ops": [{"DecodeImage": None}, {"ResizeImage": {"size": 8}}, {"NormalizeImage": {}}],
        },
        "sampler": {"batch_size": 3},
        "loader": {"num_workers": 0, "dali": {"num_threads": 1}},
    }
    tree = {
        "Global": {"device": "cpu", "output_dir": str(tmp_path / "run"), "epochs": 1, "use_dali": True},
        "Arch": {"name": "Linear", "class_num": CLASSES},
        "Optimizer": {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 0.01}},
        "DataLoader": {"Train": split, "Eval": copy.deepcopy(split)},
        "Metric": {"Eval": [{"TopkAcc": {"topk": 1}}]},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Weights of the linear model."""
    paddle.save(build_linear(CLASSES, "NCHW", 3).state_dict(), str(tmp_path / "weights.pdparams"))
    return tmp_path / "weights.pdparams"


Fails = Callable[..., str]


@pytest.fixture
def fails(config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail with one message and change no file; returns the message."""

    def read_files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def check(command: Callable[[Any], int], *overrides: str, path: Path = config) -> str:
        before = read_files()
        capfd.readouterr()
        assert command(["-c", str(path), *(["-o", *overrides] if overrides else [])]) == 2
        lines = capfd.readouterr().err.splitlines(keepends=True)
        message = "".join(line for line in lines if "[jpeg_parser]" not in line)  # printed by DALI
        assert message.startswith("error: ")
        assert "Traceback" not in message
        after = read_files()
        assert {path: after.get(path) for path in before} == before
        return message.removeprefix("error: ")

    return check
