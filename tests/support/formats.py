"""Builds records, shards and DALI's readers for tests of record formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, tfrecord

from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import ImageRecord, OpenFiles, Shard, default_index_path

IN_FILES = [name for name in FORMATS if name != "lmdb"]


def records(images: Sequence[bytes], labels: Sequence[int]) -> list[ImageRecord]:
    return [
        ImageRecord(f"{number:08d}.jpg", image, label)
        for number, (image, label) in enumerate(zip(images, labels, strict=True))
    ]


def write(name: str, path: Path, samples: Sequence[ImageRecord]) -> Path:
    """Writes a shard and its index."""
    FORMATS[name].write(path, samples)
    return write_index(name, path)


def write_index(name: str, path: Path) -> Path:
    text = FORMATS[name].build_index(path)
    if text is not None:
        default_index_path(path).write_text(text)
    return path


def opened(name: str, path: Path) -> Shard:
    return FORMATS[name].open(path, default_index_path(path), OpenFiles())


def content(shard: Shard) -> list[tuple[bytes, int]]:
    return [(shard.read(number), int(label)) for number, label in enumerate(shard.labels)]


def pairs(samples: Sequence[ImageRecord]) -> list[tuple[bytes, int]]:
    return [(sample.image, sample.label) for sample in samples]


def _webdataset(paths: list[str], indexes: list[str]) -> Any:
    return fn.readers.webdataset(paths=paths, index_paths=indexes, ext=["jpg;png;bmp;webp", "cls"])


def _tfrecord(paths: list[str], indexes: list[str]) -> Any:
    features = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    read: Any = fn.readers.tfrecord(path=paths, index_path=indexes, features=features)
    return read["image/encoded"], read["image/class/label"]


def _recordio(paths: list[str], indexes: list[str]) -> Any:
    return fn.readers.mxnet(path=paths, index_path=indexes)


def _lmdb(paths: list[str], indexes: list[str]) -> Any:
    return fn.readers.caffe2(path=paths)


_READERS: dict[str, Callable[[list[str], list[str]], Any]] = {
    "webdataset": _webdataset,
    "tfrecord": _tfrecord,
    "recordio": _recordio,
    "lmdb": _lmdb,
}


def by_dali(name: str, paths: Sequence[Path], count: int) -> list[tuple[bytes, int]]:
    """Reads ``count`` records by DALI's own reader, in its order."""
    pipeline = Pipeline(batch_size=count, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        pipeline.set_outputs(
            *_READERS[name]([str(path) for path in paths], [str(default_index_path(path)) for path in paths])
        )
    pipeline.build()
    images, labels = pipeline.run()
    found = [(np.array(images[i]).tobytes(), np.array(labels[i])) for i in range(count)]
    return [(image, int(label.tobytes() if name == "webdataset" else label.item())) for image, label in found]
