"""Measures reading the images of a workload, from the disk or from memory, without a loader."""

from __future__ import annotations

from dataclasses import replace

from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import RATE, Candidate
from ppcls.bench.results.schema import Label
from ppcls.data.read_speed import EVICTED, time_reading
from ppcls.engine.autotune.processes import MeasurementFailed, Sample

MEGABYTES = "megabytes_per_second"


def reading_candidate(
    workload: LoaderWorkload, setting: LoaderSetting, seconds: float, *, cold: bool
) -> Candidate[LoaderSetting]:
    """Returns a candidate that measures reading the images from the disk (cold) or from memory.

    Args:
        workload: Images to read.
        setting: Setting of the loader, which determines the number of threads.
        seconds: Duration of a measurement in seconds.
        cold: Whether the files are removed from the page cache before each measurement.
    """

    def measure() -> Sample:
        try:
            positions = workload.positions.tolist()
            speed = time_reading(workload.index, positions, max(1, setting.workers), seconds, cold=cold)
        except OSError as error:
            raise MeasurementFailed(f"the files can't be removed from memory: {error}") from None
        if cold:
            check_cold(speed.resident)
        return {RATE: speed.images_per_second, MEGABYTES: speed.megabytes_per_second}

    kind = "disk, cold" if cold else "memory"
    labels: dict[str, Label] = {"up to": kind, "of": setting.describe()}
    return Candidate(replace(setting, stage="disk"), f"reading from {kind}", measure, labels)


def check_cold(resident: float) -> None:
    """Raises `MeasurementFailed` if files were not removed from the page cache.

    Args:
        resident: Share of their pages in the cache, 0..1.
    """
    if resident > EVICTED:
        raise MeasurementFailed(
            f"{resident:.0%} of the files stayed in memory, so their disk can't be measured: the folder "
            "is in memory (tmpfs), another process uses the files, or they belong to another user"
        )
