"""Reading ahead of decoding: the same batches by path and by name, from any position."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.reader import DaliReader, NamingReader, Reader, build_reader
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.sampling.sampler import ShuffledSampler
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import DecodeImage, plan_chain
from ppcls.errors import UserError


@pytest.fixture
def index(photos: dict[str, Path]) -> FileIndex:
    files = [path for key, path in photos.items() if key.split("-")[0] in ("jpeg420", "png", "turned")]
    return FileIndex(
        root=files[0].parent,
        paths=np.array([path.name.encode() for path in files]),
        labels=np.arange(len(files)),
        source=files[0].parent,
    )


def read(reader: Reader, batches: int) -> Iterator[tuple[Any, ...]]:
    for _ in range(batches):
        batch = reader.read()
        files = [np.array(batch.files[row]).tobytes() for row in range(len(batch.files))]
        yield batch.cursor, batch.step.indices.tolist(), files, batch.sides.tolist()


def make(index: FileIndex, order: Order, cached: bool) -> Reader:
    settings = DaliSettings(threads=2, decoder={"cache_size": 1} if cached else {})
    reader = build_reader(index, order, settings, DecodeImage(), ThreadPoolExecutor(1))
    assert isinstance(reader, NamingReader if cached else DaliReader)
    return reader


@pytest.fixture
def order(index: FileIndex) -> Order:
    return Order(ShuffledSampler(len(index)), batch_size=4, seed=3)  # three steps, the last of one sample


@pytest.mark.parametrize("cached", [False, True])
def test_batches_are_the_files_and_their_upright_sides(index: FileIndex, order: Order, cached: bool) -> None:
    reader, cursor = make(index, order, cached), Cursor()
    for found, indices, files, sides in read(reader, 5):
        assert found == cursor
        assert indices == order.at(cursor).indices.tolist()
        assert files == [index.read(position) for position in indices]
        upright = [run(plan_chain([DecodeImage()], "HWC"), file, np.zeros(0, np.float32)) for file in files]
        assert sides == [list(image.shape[:2]) for image in upright]
        cursor = cursor.next(len(order))


@pytest.mark.parametrize("cached", [False, True])
def test_seeking_goes_on_from_there(index: FileIndex, order: Order, cached: bool) -> None:
    reader = make(index, order, cached)
    next(read(reader, 1))
    reader.seek(Cursor(4, 1))
    found = [cursor for cursor, *_ in read(reader, 8)]
    begin = found.index(Cursor(4, 1))
    assert found[begin : begin + 3] == [Cursor(4, 1), Cursor(4, 2), Cursor(5, 0)]
    assert all(cursor.epoch == 0 for cursor in found[:begin]), "what was under way comes first"


def test_the_decoder_learns_the_names_of_files(index: FileIndex, order: Order) -> None:
    reader = make(index, order, cached=True)
    batch = reader.read()
    names = [batch.files[row].source_info() for row in range(4)]
    assert names == [index.path(position).decode() for position in batch.step.indices]


def test_a_cache_for_samples_without_files_is_refused(index: FileIndex, order: Order) -> None:
    class Elsewhere:
        labels, source = index.labels, index.source

        def __len__(self) -> int:
            return len(index)

    with pytest.raises(UserError, match="the decoder's cache works on image files"):
        make(Elsewhere(), order, cached=True)  # type: ignore[arg-type]
