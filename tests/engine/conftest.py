"""A small data set and a small config, real in every part: JPEG files, ResNet18, DALI or paddle.io."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from ppcls.config.load import validate
from ppcls.config.schema import Config
from ppcls.runtime import Runtime

CLASSES = 4
TRAIN, EVAL = 26, 11


def _write(folder: Path, name: str, count: int, rng: np.random.Generator) -> None:
    lines = []
    for i in range(count):
        label = i % CLASSES
        image = rng.integers(0, 90, (20, 24, 3))
        image[..., label % 3] += 60 + 100 * (label // 3)
        path = f"{name} {i}.jpg"
        cv2.imwrite(str(folder / path), image.clip(0, 255).astype(np.uint8))
        lines.append(f"{path} {label}")
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of coloured noise in four classes: ``train.txt`` with 26 images, ``eval.txt`` with 11."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(7)
    _write(folder, "train", TRAIN, rng)
    _write(folder, "eval", EVAL, rng)
    return folder


def small_tree(images: Path, output: Path) -> dict[str, Any]:
    """The YAML of a run of 2 epochs of 4 batches at 16 px."""
    normalize = {"NormalizeImage": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    random = [{"RandCropImage": {"size": 16}}, {"RandFlipImage": {"flip_code": 1}}]

    def split(name: str, chain: list[Any], **sampler: Any) -> dict[str, Any]:
        return {
            "dataset": {
                "name": "ImageNetDataset",
                "image_root": str(images),
                "cls_label_path": str(images / f"{name}.txt"),
                "transform_ops": [{"DecodeImage": None}, *chain, normalize],
            },
            "sampler": {"batch_size": 8, **sampler},
            "loader": {"num_workers": 0, "dali": {"num_threads": 1}},
        }

    return {
        "Global": {
            "output_dir": str(output),
            "device": "cpu",
            "seed": 5,
            "epochs": 2,
            "use_dali": True,
            "print_batch_step": 2,
            "image_shape": [3, 16, 16],
        },
        "Arch": {"name": "ResNet18", "class_num": CLASSES},
        "Optimizer": {
            "name": "Momentum",
            "lr": {"name": "Cosine", "learning_rate": 0.01},
            "regularizer": {"name": "L2", "coeff": 1e-4},
        },
        "DataLoader": {
            "Train": split("train", random, shuffle=True),
            "Eval": split("eval", [{"ResizeImage": {"size": 16}}]),
        },
        "Metric": {"Train": [{"TopkAcc": {"topk": 1}}], "Eval": [{"TopkAcc": {"topk": [1, 2]}}]},
    }


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Sets ``a.b.c`` in a tree."""
    *sections, key = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[key] = value


@pytest.fixture
def make_config(images: Path, tmp_path: Path) -> Callable[..., Config]:
    """Makes the small config; keywords ``Global__epochs=3`` change it."""

    def make(output: str = "run", **changes: Any) -> Config:
        tree = small_tree(images, tmp_path / output)
        for path, value in changes.items():
            put(tree, path.replace("__", "."), value)
        return validate(tree, "small")

    return make


@pytest.fixture
def make_yaml(images: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes the small config to a file, as ``make_config`` makes it."""

    def make(output: str = "run", **changes: Any) -> Path:
        tree = small_tree(images, tmp_path / output)
        for path, value in changes.items():
            put(tree, path.replace("__", "."), value)
        file = tmp_path / f"{output}.yaml"
        file.write_text(yaml.safe_dump(tree))
        return file

    return make


@pytest.fixture
def cpu() -> Runtime:
    """One process on the CPU."""
    return Runtime(cores=1, threads=1)
