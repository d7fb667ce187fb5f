"""A small data set and a small config without fakes: JPEG files, a real model, and DALI or paddle.io."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from small_tree import CLASSES, small_tree

from ppcls.recipe.load import validate
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime

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


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Sets ``a.b.c`` in a tree."""
    *sections, key = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[key] = value


@pytest.fixture
def make_config(images: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Config]:
    """Makes the small config, with ResNet18 on a GPU; keywords ``Global__epochs=3`` change it."""

    def make(output: str = "run", **changes: Any) -> Config:
        tree = small_tree(images, tmp_path / output)
        if request.node.get_closest_marker("gpu"):
            tree["Arch"]["name"] = "ResNet18"
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
