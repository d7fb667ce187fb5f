"""What reading costs: containers and plain files, by DALI's own readers and by ours, within one run.

DALI's readers go through a container in its order. Ours take the images of a shuffled epoch, each from its
place. Both are timed twice: when they hand over bytes and do nothing else, and with the config's whole chain
behind them, in turns as `ppcls.bench.loader.timing` has them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, tfrecord

from ppcls.bench.loader.bare import Read, bare, bare_pipeline, read_files
from ppcls.bench.loader.quick import train_split
from ppcls.bench.loader.subject import layout_of
from ppcls.bench.loader.timing import Epoch, Speed, compare, finisher, through
from ppcls.config.schema import Config
from ppcls.config.sections.dataset import (
    LMDBDataset,
    RecordDataset,
    RecordIODataset,
    TFRecordDataset,
    WebDataset,
)
from ppcls.config.sections.loader import Split
from ppcls.data.build import build_loader
from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.reader import Reader, build_reader
from ppcls.data.loaders.dali.settings import resolve_dali_settings
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import default_index_path
from ppcls.data.sampling.order import Order
from ppcls.data.sampling.sampler import ShuffledSampler
from ppcls.dataset_tools.convert import Conversion, convert
from ppcls.runtime.start import Runtime

_PASSES = 4  # over the images in a turn of bytes alone, which are fast
_PAGE = 4096  # bytes
_AHEAD = 2  # batches, as our reader has


def _webdataset(path: str, index: str) -> Any:
    read: Any = fn.readers.webdataset(
        paths=[path], index_paths=[index], ext=["jpg;jpeg;png;bmp;webp;tif;tiff;jp2", "cls"]
    )
    image, label = read
    return image, fn.pad(label)  # digits, of some labels more than of others


def _tfrecord(path: str, index: str) -> Any:
    features = {
        "image/encoded": tfrecord.FixedLenFeature([], tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    read: Any = fn.readers.tfrecord(path=[path], index_path=[index], features=features)
    return read["image/encoded"], read["image/class/label"]


def _recordio(path: str, index: str) -> Any:
    return fn.readers.mxnet(path=[path], index_path=[index])


def _lmdb(path: str, index: str) -> Any:  # noqa: ARG001 - it has none
    return fn.readers.caffe2(path=path)


_KINDS: dict[str, tuple[type[RecordDataset], Callable[[str, str], Any]]] = {
    "webdataset": (WebDataset, _webdataset),
    "tfrecord": (TFRecordDataset, _tfrecord),
    "recordio": (RecordIODataset, _recordio),
    "lmdb": (LMDBDataset, _lmdb),
}


@dataclass(frozen=True)
class Comparison:
    """DALI's reader and ours of one kind of source.

    Attributes:
        source: ``files``, or the container's format.
        what: ``bytes``, or ``whole chain``.
        dali: DALI's reader, in the source's order.
        ours: Our reader, in an epoch's shuffled order; its ratios are to DALI's.
    """

    source: str
    what: str
    dali: Speed
    ours: Speed

    def describe(self) -> str:
        """Returns a heading and a line each."""
        return f"{self.source}, {self.what}\n  {self.dali.describe()}\n  {self.ours.describe()}"


def benchmark_containers(config: Config, runtime: Runtime, rounds: int) -> Iterator[Comparison]:
    """Times the images of DataLoader.Train in files, then written into each container.

    Args:
        config: Its images are files; its chain is decode, random crop, flip, normalize.
        runtime: Device and cores.
        rounds: Counted turns of each.

    Yields:
        Bytes alone and the whole chain, of each source.

    Raises:
        UserError: The data can't be used, the images are no files, or the chain is another.
    """
    split, index, _ = train_split(config, runtime)
    config = config.model_copy(update={"Global": config.Global.model_copy(update={"use_dali": True})})
    read = read_files(index, shuffled=False)
    assert isinstance(index, FileIndex)  # by read_files
    yield from _compare("files", read, config, split, runtime, rounds)
    for name, (kind, reader) in _KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            conversion = Conversion(index, FORMATS[name], Path(folder), (len(index),))
            convert(conversion, lambda _: None)
            path = conversion.shards[0][0]
            dataset = kind(paths=(str(path),), transform_ops=split.dataset.transform_ops)
            written = split.model_copy(update={"dataset": dataset})
            read = partial(reader, str(path), str(default_index_path(path)))
            yield from _compare(name, read, config, written, runtime, rounds)


def _compare(
    source: str, read: Read, config: Config, split: Split, runtime: Runtime, rounds: int
) -> Iterator[Comparison]:
    """Times ``split`` by DALI's reader, which ``read`` makes, and by ours."""
    loaders = config.DataLoader.model_copy(update={"Train": split})
    config = config.model_copy(update={"DataLoader": loaders})
    _, index, steps = train_split(config, runtime)
    batch_size = split.sampler.rows(runtime.world_size)
    decoder = split.dataset.transform_ops[0]
    settings = resolve_dali_settings(split.loader.dali, runtime)
    by_hand = bare_pipeline(read, split, runtime, layout_of(config))
    order = Order(ShuffledSampler(len(index)), batch_size, config.Global.seed, drop_last=True)
    classes = config.class_count(training=True)
    loader = build_loader(split, "Train", runtime, config.Global, config.Arch, classes)
    with ThreadPoolExecutor(settings.threads) as pool:
        pairs: dict[str, tuple[Epoch, Epoch]] = {
            "bytes": (
                _dali_bytes(read, batch_size, settings.threads, steps),
                _our_bytes(build_reader(index, order, settings, decoder, pool), steps),
            ),
            "whole chain": (
                bare(by_hand, steps, batch_size),
                through(loader),
            ),
        }
        for what, (dali, ours) in pairs.items():
            contenders = {"DALI's reader": dali, "ppcls": ours}
            compared = compare(contenders, rounds, time.perf_counter, finisher(runtime))
            yield Comparison(source, what, *compared.speeds)
            if compared.interrupt is not None:
                raise compared.interrupt


def _dali_bytes(read: Read, batch_size: int, threads: int, steps: int) -> Epoch:
    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=_AHEAD,
        exec_dynamic=True,
    )
    with pipeline:
        encoded, _ = read()
        pipeline.set_outputs(encoded)
    pipeline.build()

    def epoch() -> Iterator[int]:
        for _ in range(_PASSES * steps):
            yield _touch(pipeline.run()[0])

    return epoch


def _our_bytes(reader: Reader, steps: int) -> Epoch:
    def epoch() -> Iterator[int]:
        for _ in range(_PASSES * steps):
            yield _touch(reader.read().files)

    return epoch


def _touch(images: Any) -> int:
    """Looks at every page, for a file that is mapped is read only then; returns the number of images."""
    for row in range(len(images)):
        np.asarray(images[row])[::_PAGE].max()
    return len(images)
