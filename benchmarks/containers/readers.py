"""Benchmark of reading from containers and plain files, with DALI's readers and with ppcls's readers.

DALI's readers read a container sequentially. ppcls's readers read images in random order. Both are timed
twice: when they only read bytes, and with all transforms of the config.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nvidia.dali import fn, tfrecord

from ppcls.bench.loader.advice import dali_setting
from ppcls.bench.loader.bare import check_bare, read_files
from ppcls.bench.loader.runners import BatchTimer, Loaders, loader_candidate
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.results.schema import Label
from ppcls.data.index.files import FileIndex
from ppcls.data.index.records import LMDBDataset, RecordDataset, RecordIODataset, TFRecordDataset, WebDataset
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import default_index_path
from ppcls.dataset_tools.convert import Conversion, convert

_DALI = "DALI's reader"
_AHEAD = 2  # number of batches that both readers prepare ahead


def _webdataset(path: str, index: str) -> Any:
    read: Any = fn.readers.webdataset(
        paths=[path], index_paths=[index], ext=["jpg;jpeg;png;bmp;webp;tif;tiff;jp2", "cls"]
    )
    image, label = read
    return image, fn.pad(label)  # labels are texts of different lengths


def _tfrecord(path: str, index: str) -> Any:
    features = {
        "image/encoded": tfrecord.FixedLenFeature([], tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    read: Any = fn.readers.tfrecord(path=[path], index_path=[index], features=features)
    return read["image/encoded"], read["image/class/label"]


def _recordio(path: str, index: str) -> Any:
    return fn.readers.mxnet(path=[path], index_path=[index])


def _lmdb(path: str, index: str) -> Any:  # noqa: ARG001 - LMDB has no index file
    return fn.readers.caffe2(path=path)


_FORMATS: dict[str, tuple[type[RecordDataset], Callable[[str, str], Any]]] = {
    "webdataset": (WebDataset, _webdataset),
    "tfrecord": (TFRecordDataset, _tfrecord),
    "recordio": (RecordIODataset, _recordio),
    "lmdb": (LMDBDataset, _lmdb),
}


def container_groups(workload: LoaderWorkload, timer: BatchTimer) -> Iterator[Loaders]:
    """Yields the candidates for plain files, then those for each container format.

    Each container is a temporary file, which is deleted when the next candidates are requested.

    Raises:
        UserError: The images or the transforms are not supported; see `check_bare`.
    """
    check_bare(workload)
    files = replace(workload, reader=read_files(workload, shuffled=False))
    yield _candidates("files", files, timer)
    index = workload.index
    split = workload.split
    assert isinstance(index, FileIndex)  # as check_bare ensures
    for name, (dataset, reader) in _FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            conversion = Conversion(index, FORMATS[name], Path(folder), (len(index),))
            convert(conversion, lambda _: None)
            path = conversion.shards[0][0]
            written = dataset(paths=(str(path),), transform_ops=split.dataset.transform_ops)
            converted = replace(
                workload,
                split=split.model_copy(update={"dataset": written}),
                index=written.read(workload.arch.class_num),
                reader=partial(reader, str(path), str(default_index_path(path))),
            )
            yield _candidates(name, converted, timer)


def _candidates(source: str, workload: LoaderWorkload, timer: BatchTimer) -> Loaders:
    """Returns candidates for DALI's and ppcls's reader, each without transforms and with all transforms."""
    ours = dali_setting(workload)
    works: dict[str, LoaderSetting] = {
        "bytes": replace(ours, prefetch=_AHEAD, stage="disk"),
        "whole chain": ours,
    }
    candidates: Loaders = []
    for work, setting in works.items():
        readers = {_DALI: replace(setting, backend="bare DALI"), "ppcls": setting}
        for reader, each in readers.items():
            labels: dict[str, Label] = {"source": source, "work": work, "reader": reader}
            name = f"{source}, {work}, {reader}"
            candidates.append(loader_candidate(each, workload, timer, name, labels))
            candidates[-1].base = (f"of {_DALI}", candidates[-1 if reader == _DALI else -2])
    return candidates
