"""Cost of reading: containers and plain files, by DALI's readers and by ours.

DALI's readers read a container sequentially, ours read the images of a shuffled epoch. Both are timed twice:
when they only read bytes, and with the config's whole chain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nvidia.dali import fn, tfrecord

from ppcls.bench.loader.advice import dali_setting
from ppcls.bench.loader.bare import ReaderGraph, bare_pipeline, need_tutorial_chain, read_files
from ppcls.bench.loader.runners import BatchTimer, Counts, batch_candidate, load_batches, run_pipeline
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import Chain, LoaderWorkload, read_workload
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


class ReaderKey(NamedTuple):
    """One measurement of the benchmark; its fields are labels of the result row."""

    source: str
    work: str
    reader: str


def container_groups(workload: LoaderWorkload, timer: BatchTimer) -> Iterator[list[Candidate[ReaderKey]]]:
    """Yields the candidates of files, then those of each container, which is deleted before the next one.

    Args:
        workload: Image files; the chain must be decode, random crop, flip, normalize.
        timer: Timer of batches.

    Raises:
        UserError: The images are not files, or the chain is another one.
    """
    need_tutorial_chain(workload)
    yield _candidates("files", workload, read_files(workload, shuffled=False), timer)
    index, split = workload.index, workload.split
    assert isinstance(index, FileIndex)  # by read_files
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
) -> list[Candidate[ReaderKey]]:
    setting = dali_setting(workload)
    read_only = LoaderSetting("DALI CPU", "read", setting.workers, _AHEAD)
    cpu = workload.on_cpu.dali_settings(setting.workers, _AHEAD)
    settings = resolve_dali_settings(workload.split.loader.dali, workload.runtime)

    def run_dali(chain: Chain) -> Counts:
        bytes_only = chain == "read"
        pipeline = bare_pipeline(chain, workload, cpu if bytes_only else settings, read)
        return run_pipeline(pipeline, touch=bytes_only)

    streams: dict[tuple[str, str], Callable[[], Counts]] = {
        ("bytes", "DALI's reader"): lambda: run_dali("read"),
        ("bytes", "ppcls"): lambda: load_batches(read_only, workload),
        ("whole chain", "DALI's reader"): lambda: run_dali("config"),
        ("whole chain", "ppcls"): lambda: load_batches(setting, workload),
    }
    return [
        batch_candidate(
            ReaderKey(source, *names), ", ".join((source, *names)), stream, timer, setting.skipped_batches
        )
        for names, stream in streams.items()
    ]


def make_rows(measured: list[Measurements[ReaderKey]]) -> list[ResultRow]:
    """Returns one row per source, work and reader, with our ratio to DALI's reader."""
    by_key = {measurement.key: measurement for measurement in measured}
    rows = []
    for measurement in measured:
        metrics = {"throughput": measurement.rate()} if measurement.samples else {}
        dali = by_key[measurement.key._replace(reader="DALI's reader")]
        if measurement.samples and dali.samples:
            metrics["of DALI's reader"] = measurement.ratio(dali)
        rows.append(ResultRow(dict(measurement.key._asdict()), metrics, measurement.note))
    return rows
