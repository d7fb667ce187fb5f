"""Compares folders of the same images on several disks, and names the bottleneck of each.

The images of a data set that is larger than the memory come from the disk in every epoch. A second pass over
a few images comes from memory. So the files are removed from the page cache before each cold measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ppcls.bench.loader.advice import dali_setting
from ppcls.bench.loader.reading import MEGABYTES, check_cold, reading_candidate
from ppcls.bench.loader.runners import BatchTimer, Loaders, load_batches, loader_candidate
from ppcls.bench.loader.settings import Backend, LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import Quantity, ResultRow
from ppcls.bench.results.tables import number
from ppcls.data.index.base import FileDataset
from ppcls.data.page_cache import evict, resident_share
from ppcls.data.read_speed import CHECKED_FILES
from ppcls.engine.autotune.processes import MeasurementFailed, Sample
from ppcls.errors import UserError

_HAND_OVER = 0.9  # share of the speed before the hand-over below which the hand-over is the bottleneck


@dataclass(frozen=True)
class Storage:
    """Measurements of one folder with one loader.

    Attributes:
        folder: Folder of the images.
        setting: Setting of the loader.
        disk: Reads images that are not in memory.
        memory: Reads images from memory.
        prepared: Reads from memory, decodes and transforms images.
        whole: The whole loader, with images in memory.
        cold: The whole loader, with images that are not in memory.
    """

    folder: str
    setting: LoaderSetting
    disk: Candidate[LoaderSetting]
    memory: Candidate[LoaderSetting]
    prepared: Candidate[LoaderSetting]
    whole: Candidate[LoaderSetting]
    cold: Candidate[LoaderSetting]

    @property
    def candidates(self) -> Loaders:
        """All measurements."""
        return [self.disk, self.memory, self.prepared, self.whole, self.cold]

    def row(self) -> ResultRow:
        """Returns one row with all speeds, whose note names the bottleneck."""
        columns = {
            "read, cold": self.disk,
            "read, in memory": self.memory,
            f"prepared by the {self.preparer}": self.prepared,
            "loader, in memory": self.whole,
            "loader, cold": self.cold,
        }
        metrics: dict[str, Quantity] = {}
        if self.disk.samples:
            metrics["disk"] = Quantity(tuple(sample[MEGABYTES] for sample in self.disk.samples), "MB/s")
        for name, candidate in columns.items():
            if candidate.samples:
                metrics[name] = candidate.rate
        return ResultRow({"storage": self.folder, "loader": self.setting.describe()}, metrics, self._note())

    @property
    def preparer(self) -> str:
        """The device that decodes and transforms images."""
        return "GPU" if self.setting.backend == "DALI GPU" else "CPU"

    @property
    def bottleneck(self) -> str:
        """The bottleneck: disk, CPU, GPU or hand-over; empty if it could not be measured."""
        if not (self.prepared.samples and self.whole.samples):
            return ""
        whole = self.whole.rate.median
        if self.disk.samples and self.disk.rate.median < whole:
            return "disk"
        return "hand-over" if whole < _HAND_OVER * self.prepared.rate.median else self.preparer

    def _note(self) -> str:
        reasons = dict.fromkeys(each.reason for each in self.candidates if each.reason)
        if not (bottleneck := self.bottleneck):
            return "; ".join(reasons)
        return "; ".join([f"bottleneck: {bottleneck}", *reasons])


def list_storages(workloads: Sequence[LoaderWorkload], timer: BatchTimer) -> list[Storage]:
    """Returns the measurements of several folders, with DALI on the CPU and, if there is one, on the GPU."""
    storages = []
    for workload in workloads:
        backends: list[Backend] = ["DALI CPU", "DALI GPU"] if workload.on_gpu else ["DALI CPU"]
        for backend in backends:
            setting = replace(dali_setting(workload), backend=backend)
            storages.append(_make_storage(workload, setting, timer))
    return storages


def _make_storage(workload: LoaderWorkload, setting: LoaderSetting, timer: BatchTimer) -> Storage:
    folder = workload.split.dataset.place

    def named(name: str, setting: LoaderSetting) -> Candidate[LoaderSetting]:
        candidate = loader_candidate(setting, workload, timer, f"{folder}: {name}, {setting.backend}")
        return replace(candidate, measure=lambda: _in_memory(workload, candidate))

    disk, memory = (
        replace(candidate, name=f"{folder}: {candidate.name}")
        for candidate in (
            reading_candidate(workload, setting, timer.seconds, cold=cold) for cold in (True, False)
        )
    )
    whole = named("loader in memory", setting)
    cold = replace(
        whole,
        name=f"{folder}: loader, cold, {setting.backend}",
        measure=lambda: _load_cold(workload, setting, timer),
        samples=[],
    )
    prepared = named("prepared images", replace(setting, stage="transform"))
    return Storage(folder, setting, disk, memory, prepared, whole, cold)


def _in_memory(workload: LoaderWorkload, candidate: Candidate[LoaderSetting]) -> Sample:
    """Measures a loader after all images are in the page cache."""
    for position in workload.positions.tolist():
        workload.index.read(position)
    return candidate.measure()


def _load_cold(workload: LoaderWorkload, setting: LoaderSetting, timer: BatchTimer) -> Sample:
    """Measures the whole loader in its first pass over files that are not in the page cache."""
    files = [Path(name) for name in dict.fromkeys(map(workload.index.name, workload.positions.tolist()))]
    try:
        evict(files)
        check_cold(resident_share(files[:CHECKED_FILES]))
    except OSError as error:
        raise MeasurementFailed(f"the files can't be removed from memory: {error}") from None
    count = workload.images // workload.batch_size
    try:
        with closing(load_batches(setting, workload)) as batches:
            return timer.time(islice(batches, count), min(setting.skipped_batches, count // 2))
    except ValueError as error:
        raise MeasurementFailed(f"{error}; use more --images") from None


def with_folder(workload: LoaderWorkload, folder: Path) -> LoaderWorkload:
    """Returns the workload with the copies of its images in another folder.

    Raises:
        UserError: The data set has no ``image_root``, or the folder lacks the images.
    """
    dataset = workload.split.dataset
    if not isinstance(dataset, FileDataset):
        raise UserError(
            "--data: expected a data set of image files with image_root in DataLoader.Train.dataset"
        )
    copy = dataset.model_copy(update={"image_root": str(folder)})
    split = workload.split.model_copy(update={"dataset": copy})
    index = split.dataset.read(workload.arch.class_num)
    return replace(workload, split=split, index=index, images=min(workload.images, len(index)))


def explain_storages(storages: Sequence[Storage]) -> Iterator[str]:
    """Yields sentences about the columns and the bottlenecks."""
    yield (
        "Cold: the files were removed from the page cache before each measurement (posix_fadvise), and none "
        "was left in it (mincore). The bottleneck is that of images that are not in memory: the disk if it "
        "reads fewer images per second than the loader could use, else the device that prepares the images, "
        "or the hand-over of batches to training."
    )
    for storage in storages:
        if storage.bottleneck == "disk":
            whole = storage.whole.rate.median
            yield (
                f"{storage.folder}: the disk reads {number(storage.disk.rate.median)} images/s, and "
                f"{storage.setting.describe()} could use {number(whole)}. Use a faster disk, containers "
                "(ppcls dataset convert), or smaller images (ppcls dataset resize)."
            )
