"""Compares DALI with paddle.io for several numbers of threads and workers: the time that an epoch saves.

The work is either only to read and decode the images, or all transforms of the config.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppcls.bench.loader.advice import own_backend
from ppcls.bench.loader.runners import BatchTimer, loader_candidate
from ppcls.bench.loader.settings import SPEED_RATIO, LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import Label, Quantity, ResultRow
from ppcls.bench.results.tables import number
from ppcls.data.transforms.specs import NormalizeImage, ToCHWImage
from ppcls.report.summary.rounding import format_range, format_ratio_with_range, format_rounded

READ = "read only"
_LOADER = "loader"
COUNT = "workers or threads"


@dataclass(frozen=True)
class Improvement:
    """Two loaders that do the same work with the same number of workers and threads.

    Attributes:
        images: Number of images in an epoch.
        framework: Measurements of paddle.io.
        dali: Measurements of DALI.
    """

    images: int
    framework: Candidate[LoaderSetting]
    dali: Candidate[LoaderSetting]

    def rows(self) -> Iterator[ResultRow]:
        """Yields one row per loader. That of DALI has the improvement and the ratio of speeds."""
        for loader in (self.framework, self.dali):
            row = loader.row()
            metrics = dict(row.metrics)
            if loader.samples:
                seconds = tuple(self.images / rate for rate in loader.rate.values)
                metrics["time"] = Quantity(seconds, "s per epoch", "less")
            if loader is self.dali and (saved := self.saved) is not None:
                metrics["improvement"] = saved
                metrics[SPEED_RATIO] = self.dali.ratio(self.framework)
            yield ResultRow(row.labels, metrics, row.note)

    @property
    def saved(self) -> Quantity | None:
        """Share of paddle.io's time per epoch that DALI saves, in per cent; None if it was not measured."""
        if not (self.framework.samples and self.dali.samples):
            return None
        ratios = self.framework.ratio(self.dali).values
        return Quantity(tuple(100 * (1 - ratio) for ratio in ratios), "% less time")


def list_improvements(
    workload: LoaderWorkload, counts: Sequence[int], timer: BatchTimer
) -> list[Improvement]:
    """Returns the comparisons of a workload.

    Args:
        workload: Images to load.
        counts: Numbers of DALI's threads, and of workers of paddle.io.
        timer: Times batches.
    """
    backend = own_backend(workload)
    stages: Mapping[str, Stage] = {READ: "decode", _describe_work(workload): "hand-over"}

    def make(work: str, setting: LoaderSetting) -> Candidate[LoaderSetting]:
        name = setting.backend
        labels: dict[str, Label] = {"work": work, _LOADER: name, COUNT: setting.workers}
        return loader_candidate(setting, workload, timer, f"{work}: {setting.describe()}", labels)

    return [
        Improvement(
            len(workload.index),
            make(work, LoaderSetting("paddle.io", count, stage=stage)),
            make(work, LoaderSetting(backend, count, stage=stage)),
        )
        for work, stage in stages.items()
        for count in counts
    ]


def _describe_work(workload: LoaderWorkload) -> str:
    """Returns the names of the transforms after decoding, such as ``RandCropImage and RandFlipImage``."""
    _, *ops = workload.split.dataset.transform_ops
    names = dict.fromkeys(type(op).__name__ for op in ops if not isinstance(op, NormalizeImage | ToCHWImage))
    return " and ".join(["read", *names])


def _describe_saved(saved: Quantity) -> str:
    """Returns the saved time with its range, such as ``57 % less time (52 to 62 %)``."""
    word, sign = ("less", 1) if saved.median >= 0 else ("more", -1)
    low, high = sorted((sign * saved.low, sign * saved.high))
    if len(saved.values) == 1:
        return f"{format_rounded(sign * saved.median, -math.inf, math.inf)} % {word} time"
    span = format_range(sign * saved.median, low, high)
    return f"{format_rounded(sign * saved.median, low, high)} % {word} time ({span} %)"


def explain_improvements(improvements: Sequence[Improvement]) -> Iterator[str]:
    """Yields one sentence per comparison, and what the columns mean."""
    for each in improvements:
        if (saved := each.saved) is None:
            continue
        labels = each.dali.labels
        count = labels[COUNT]
        threads, workers = ("thread", "worker") if count == 1 else ("threads", "workers")
        seconds = each.images / each.dali.rate.median, each.images / each.framework.rate.median
        times = format_ratio_with_range(each.dali.ratio(each.framework).values, "times")
        yield (
            f"{labels['work']}: {labels[_LOADER]} with {count} {threads} needs {number(seconds[0])} s per "
            f"epoch, paddle.io with {count} {workers} {number(seconds[1])} s: {times} the speed, "
            f"{_describe_saved(saved)}."
        )
    yield (
        f"'{READ}' reads and decodes the images. The other work also transforms them and hands the batches "
        "to Paddle. The images are in memory. An epoch's time is computed from the images per second."
    )
