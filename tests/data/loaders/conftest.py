"""Fixtures of the conformance suite: every loader over photographs from every kind of source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loader_conformance import MAKERS, ORDER, TRAIN, Arrays, Samples, photo_files, take, write_shards

from ppcls.data.index.protocol import Index
from ppcls.data.index.python_source import PythonIndex
from ppcls.data.index.records import RecordIndex
from ppcls.data.loaders.batch import Loader
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import (
    Op,
)


@pytest.fixture(scope="session")
def index(
    request: pytest.FixtureRequest, photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Index:
    """Returns 21 photographs of seven formats and three shapes; each label occurs once.

    The test's parameter ``index`` chooses the source; files by default.
    """
    source = getattr(request, "param", "files")
    files = photo_files(photos, tmp_path_factory)
    if source == "files":
        return files
    samples = [(files.read(position), int(label)) for position, label in enumerate(files.labels)]
    if source == "python":
        return PythonIndex("photos", Samples(samples), files.labels)
    return RecordIndex(write_shards(source, tmp_path_factory.mktemp(source), samples))


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.gpu if "gpu" in name else ()) for name in MAKERS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str, index: Index) -> Callable[..., Loader]:
    def loader(order: Order = ORDER, ops: tuple[Op, ...] = TRAIN, **options: Any) -> Loader:
        return MAKERS[kind](index, order, ops, **options)

    return loader


@pytest.fixture(scope="session")
def uninterrupted_batches() -> dict[tuple[str, Path], list[Arrays]]:
    return {}


@pytest.fixture
def uninterrupted(
    kind: str, make: Callable[..., Loader], index: Index, uninterrupted_batches: dict[Any, list[Arrays]]
) -> list[Arrays]:
    """Returns three epochs, 18 batches, of TRAIN in ORDER; computed once per loader and source."""
    key = kind, index.source
    if key not in uninterrupted_batches:
        uninterrupted_batches[key] = take(make(), epochs=3)
    return uninterrupted_batches[key]


@pytest.fixture
def jpeg_folder(photos: dict[str, Path], tmp_path: Path) -> Path:
    """A folder of twelve JPEGs, with their list."""
    for number in range(12):
        shutil.copy(photos["jpeg420-odd"], tmp_path / f"{number}.jpg")
    (tmp_path / "list.txt").write_text("\n".join(f"{number}.jpg {number}" for number in range(12)))
    return tmp_path
