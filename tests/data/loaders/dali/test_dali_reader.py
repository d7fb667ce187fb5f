"""Reading ahead of decoding: files, records and cached files, from any position."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data.images.header import DecodeError
from ppcls.data.index.files import FileIndex
from ppcls.data.index.python_source import PythonIndex
from ppcls.data.loaders.dali.reader import (
    ArrayReader,
    CacheReader,
    FileReader,
    MemoryReader,
    Reader,
    build_reader,
)
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.epoch_samplers import SequentialSampler, ShuffledSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.transforms.numpy_ops import run
from ppcls.data.transforms.specs import DecodeImage, plan_chain
from ppcls.data.transforms.specs.basic import DecodeNumpy
from ppcls.errors import UserError

READERS = {"files": FileReader, "cached": CacheReader, "memory": MemoryReader}


@pytest.fixture
def index(photos: dict[str, Path]) -> FileIndex:
    files = [path for key, path in photos.items() if key.split("-")[0] in ("jpeg420", "png", "turned")]
    return FileIndex(
        root=files[0].parent,
        paths=np.array([path.name.encode() for path in files]),
        labels=np.arange(len(files)),
        source=files[0].parent,
    )


@pytest.fixture
def order(index: FileIndex) -> Order:
    return Order(ShuffledSampler(len(index)), batch_size=4, seed=3)  # three steps, the last of one sample


def make_reader(index: FileIndex, order: Order, kind: str) -> Reader:
    settings = DaliSettings(threads=2, decoder={"cache_size": 1} if kind == "cached" else {})
    samples = index if kind != "memory" else in_memory([index.read(row) for row in range(len(index))])
    reader = build_reader(samples, order, settings, DecodeImage(), ThreadPoolExecutor(2))
    assert isinstance(reader, READERS[kind])
    return reader


def in_memory(images: list[bytes]) -> PythonIndex:
    return PythonIndex("x", images, np.zeros(len(images), np.int64))  # type: ignore[arg-type]


def read(reader: Reader, batches: int) -> Iterator[tuple[Any, ...]]:
    for _ in range(batches):
        batch = reader.read()
        files = [np.array(batch.files[row]).tobytes() for row in range(len(batch.files))]
        yield batch.cursor, batch.step.indices.tolist(), files, batch.sides.tolist()


@pytest.mark.parametrize("kind", READERS)
def test_read_returns_encoded_files_and_upright_sides(index: FileIndex, order: Order, kind: str) -> None:
    reader, cursor = make_reader(index, order, kind), Cursor()
    for found, indices, files, sides in read(reader, 5):
        assert found == cursor
        assert indices == order.at(cursor).indices.tolist()
        assert files == [index.read(position) for position in indices]
        upright = [run(plan_chain([DecodeImage()], "HWC"), file, np.zeros(0, np.float32)) for file in files]
        assert sides == [list(image.shape[:2]) for image in upright]
        cursor = cursor.next(len(order))


@pytest.mark.parametrize("kind", READERS)
def test_seek_continues_from_there_after_batches_under_way(index: FileIndex, order: Order, kind: str) -> None:
    reader = make_reader(index, order, kind)
    next(read(reader, 1))
    reader.seek(Cursor(4, 1))
    found = [cursor for cursor, *_ in read(reader, 8)]
    begin = found.index(Cursor(4, 1))
    assert found[begin : begin + 3] == [Cursor(4, 1), Cursor(4, 2), Cursor(5, 0)]
    assert all(cursor.epoch == 0 for cursor in found[:begin]), "batches under way come first"


def test_cache_reader_passes_file_names_to_decoder(index: FileIndex, order: Order) -> None:
    reader = make_reader(index, order, "cached")
    batch = reader.read()
    names = [batch.files[row].source_info() for row in range(4)]
    assert names == [index.path(position).decode() for position in batch.step.indices]


def test_cache_for_samples_without_files_is_rejected(index: FileIndex, order: Order) -> None:
    settings = DaliSettings(decoder={"cache_size": 1})
    with pytest.raises(UserError, match="the decoder's cache supports only datasets of image files"):
        build_reader(in_memory([b""]), order, settings, DecodeImage(), ThreadPoolExecutor(1))


def test_memory_reader_passes_bytes_in_order_without_copy() -> None:
    images = [b"%d" % number * (number + 1) for number in range(50)]
    images[7] = b""  # can't be read
    order = Order(SequentialSampler(50), batch_size=50)
    pool, settings = ThreadPoolExecutor(3), DaliSettings(threads=3)
    reader = MemoryReader(in_memory(images), order, settings, DecodeImage(), 1, pool)
    positions = np.random.default_rng(0).permutation(50)
    batch, memory = reader._finish(reader._start(positions))
    assert [np.array(each).tobytes() for each in batch] == [images[position] for position in positions]
    shared = [
        np.shares_memory(np.asarray(one), two) for one, two in zip(batch, memory, strict=True) if two.size
    ]
    assert all(shared)


def saved(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def array_reader(files: list[bytes], order: Order) -> Reader:
    reader = build_reader(
        in_memory(files), order, DaliSettings(threads=3), DecodeNumpy(), ThreadPoolExecutor(2)
    )
    assert isinstance(reader, ArrayReader)
    return reader


def test_array_reader_returns_arrays_and_their_sides_from_any_position() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9, (10, 2)).tolist()
    files = [saved(rng.integers(0, 255, (*size, 3), np.uint8)) for size in sizes]
    order = Order(ShuffledSampler(10), batch_size=4, seed=3)
    reader = array_reader(files, order)
    reader.seek(Cursor(2, 1))
    cursor = Cursor(2, 1)
    for found, indices, contents, sides in read(reader, 7):
        assert found == cursor
        assert indices == order.at(cursor).indices.tolist()
        assert contents == [files[position] for position in indices]
        assert sides == [sizes[position] for position in indices]
        cursor = cursor.next(len(order))
    reader.seek(Cursor(7, 0))
    found = [cursor for cursor, *_ in read(reader, 5)]
    assert Cursor(7, 0) in found
    assert found[found.index(Cursor(7, 0)) + 1] == Cursor(7, 1)


def test_array_reader_names_all_batches_under_way_if_an_array_is_bad() -> None:
    files = [saved(np.zeros((2, 3, 3), np.uint8))] * 5 + [b"bad"] + [saved(np.zeros((2, 3, 3), np.uint8))] * 6
    reader = array_reader(files, Order(SequentialSampler(12), batch_size=2))
    assert [cursor.step for cursor, *_ in read(reader, 2)] == [0, 1]
    with pytest.raises(DecodeError, match="can't read its header"):
        reader.read()
    assert [cursor.step for cursor, _ in reader.under_way] == [2, 3]
