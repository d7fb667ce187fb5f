"""A trained model, and a server of it that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Running, running
from small_classifier import (
    config_tree,
    export_model,
    write_config,
    write_image,
    write_names,
    write_weights,
)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("model")
    weights = write_weights(folder / "model.safetensors")
    return config_tree(weights, write_names(folder / "names.txt"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for ONNX Runtime. A server of it starts in half of the time, because it needs no Paddle."""
    return export_model(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("images")
    return [write_image(folder / f"{seed}.png", seed).read_bytes() for seed in range(6)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared server runs; nothing may ever be written there."""
    return tmp_path_factory.mktemp("cwd")


@pytest.fixture(scope="session")
def server(tree: dict[str, Any], folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = write_config(tmp_path_factory.mktemp("config") / "config.yaml", tree)
    limits = ["--max-images", "6", "--max-mib", "0.05", "--max-batch", "4"]
    with running(folder, "-c", config, *limits) as started:
        yield started
