"""Compares DALI with paddle.io for several numbers of threads and workers: the time that an epoch saves.

The work is either only to read and decode the images, or all transforms of the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppcls.bench.loader.advice import own_backend
from ppcls.bench.loader.runners import BatchTimer, loader_candidate
from ppcls.bench.loader.settings import LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import Label, Quantity, ResultRow
from ppcls.data.transforms.specs import NormalizeImage, ToCHWImage

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
        """Yields one row per loader. That of DALI has the improvement over paddle.io."""
        for loader in (self.framework, self.dali):
            row = loader.row()
            metrics = dict(row.metrics)
            if loader.samples:
                seconds = tuple(self.images / rate for rate in loader.rate.values)
                metrics["time"] = Quantity(seconds, "s per epoch", "less")
            if loader is self.dali and (saved := self.saved) is not None:
                metrics["improvement"] = saved
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


def explain_improvements(improvements: Sequence[Improvement]) -> Iterator[str]:
    """Yields one sentence per comparison, and what the columns mean."""
    for each in improvements:
        if (saved := each.saved) is None:
            continue
        labels = each.dali.labels
        count = labels[COUNT]
        spread = f" ({saved.low:.0f} to {saved.high:.0f} %)" if len(saved.values) > 1 else ""
        yield (
            f"{labels['work']}, {count} threads: {labels[_LOADER]} needs {saved.median:.0f} % less time per "
            f"epoch than paddle.io with {count} workers{spread}."
        )
    yield (
        f"'{READ}' reads and decodes the images. The other work also transforms them and hands the batches "
        "to Paddle. The images are in memory. An epoch's time is computed from the images per second."
    )
