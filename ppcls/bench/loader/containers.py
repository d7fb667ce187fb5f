"""Cost of reading: containers and plain files, by DALI's readers and by ours.

DALI's readers read a container sequentially, ours read the images of a shuffled epoch. Both are timed twice:
when they only read bytes, and with the config's whole chain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nvidia.dali import fn, tfrecord

from ppcls.bench.loader.advice import dali_setting
from ppcls.bench.loader.bare import ReaderGraph, bare_pipeline, check_bare, read_files
from ppcls.bench.loader.runners import BatchTimer, Counts, load_batches, measure_batches, run_pipeline
from ppcls.bench.loader.workload import LoaderWorkload, read_workload
from ppcls.bench.measure.runner import Candidate, Measurements
from ppcls.bench.results.schema import ResultRow
from ppcls.config.sections.dataset import (
    LMDBDataset,
    RecordDataset,
    RecordIODataset,
    TFRecordDataset,
    WebDataset,
)
from ppcls.data.index.files import FileIndex
from ppcls.data.loaders.dali.settings import resolve_dali_settings
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import default_index_path
from ppcls.dataset_tools.convert import Conversion, convert

_DALI = "DALI's reader"
_AHEAD = 2  # batches that DALI's reader prepares, as ours does


def _webdataset(path: str, index: str) -> Any:
    read: Any = fn.readers.webdataset(
        paths=[path], index_paths=[index], ext=["jpg;jpeg;png;bmp;webp;tif;tiff;jp2", "cls"]
    )
    image, label = read
    return image, fn.pad(label)  # labels are digits, of different length


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


def container_groups(workload: LoaderWorkload, timer: BatchTimer) -> Iterator[list[Candidate[str]]]:
    """Yields the candidates of files, then those of each container, which is deleted before the next one.

    Args:
        workload: Image files; the chain must be decode, random crop, flip, normalize.
        timer: Timer of batches.

    Raises:
        UserError: The images are not files, or the chain is another one.
    """
    check_bare(workload)
    yield _candidates("files", workload, read_files(workload, shuffled=False), timer)
    index, split = workload.index, workload.split
    assert isinstance(index, FileIndex)  # by check_bare
    for name, (dataset, reader) in _FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            conversion = Conversion(index, FORMATS[name], Path(folder), (len(index),))
            convert(conversion, lambda _: None)
            path = conversion.shards[0][0]
            written = split.model_copy(
                update={"dataset": dataset(paths=(str(path),), transform_ops=split.dataset.transform_ops)}
            )
            loaders = workload.config.DataLoader.model_copy(update={"Train": written})
            config = workload.config.model_copy(update={"DataLoader": loaders})
            converted = read_workload(config, workload.runtime, workload.images)
            read = partial(reader, str(path), str(default_index_path(path)))
            yield _candidates(name, converted, read, timer)


def _candidates(
    source: str, workload: LoaderWorkload, read: ReaderGraph, timer: BatchTimer
) -> list[Candidate[str]]:
    """Returns DALI's reader and ours, each alone and with the whole chain; their key is the work."""
    setting = dali_setting(workload)
    read_only = replace(setting, backend="DALI CPU", prefetch=_AHEAD, stage="disk")
    cpu = workload.on_cpu.dali_settings(setting.workers, _AHEAD)
    settings = resolve_dali_settings(workload.split.loader.dali, workload.runtime)
    streams: list[tuple[str, str, Callable[[], Counts]]] = [
        (
            "bytes",
            _DALI,
            lambda: run_pipeline(bare_pipeline(workload, cpu, read, bytes_only=True), touch=True),
        ),
        ("bytes", "ppcls", lambda: load_batches(read_only, workload)),
        ("whole chain", _DALI, lambda: run_pipeline(bare_pipeline(workload, settings, read))),
        ("whole chain", "ppcls", lambda: load_batches(setting, workload)),
    ]
    return [
        Candidate(
            work,
            f"{source}, {work}, {reader}",
            partial(measure_batches, stream, timer, setting.skipped_batches),
            {"source": source, "work": work, "reader": reader},
        )
        for work, reader, stream in streams
    ]


def make_rows(measured: Sequence[Measurements[str]]) -> list[ResultRow]:
    """Returns one row per work and reader of a source, with the ratio to DALI's reader."""
    dali = {each.key: each for each in measured if each.labels["reader"] == _DALI}
    return [each.row(dali[each.key], f"of {_DALI}") for each in measured]
