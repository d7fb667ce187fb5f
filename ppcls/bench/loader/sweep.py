"""Comparisons of loaders: a sweep that finds the best setting, and a quick comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ppcls.bench.loader.advice import (
    advise,
    cheapest_good,
    dali_setting,
    describe_disk,
    find_bottleneck,
    own_backend,
    present_setting,
)
from ppcls.bench.loader.reading import reading_candidate
from ppcls.bench.loader.runners import BatchTimer, Loaders, loader_candidate
from ppcls.bench.loader.settings import (
    AS_CONFIGURED,
    STAGES,
    Backend,
    LoaderSetting,
    list_backends,
    list_variants,
)
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import Label
from ppcls.errors import counted
from ppcls.report.summary.rounding import format_ratio_with_range

BEST = "best found"
PRESENT = "present"
COLD = "disk, cold"
_BARE = "bare DALI pipeline"
_OURS = "ppcls, DALI"


class LoaderSweep:
    """Measures many settings of the loader, and finds the best one.

    Attributes:
        candidates: All candidates that were measured so far.
    """

    def __init__(
        self, workload: LoaderWorkload, timer: BatchTimer, measure: Callable[[Loaders], None]
    ) -> None:
        self._workload = workload
        self._timer = timer
        self._measure_rounds = measure
        self.candidates: Loaders = []

    def run(self, threads: Sequence[int], workers: Sequence[int]) -> tuple[LoaderSetting | None, list[str]]:
        """Measures all backends, then variants of ppcls's DALI loader, then the stages of the best setting.

        Returns:
            The recommended setting, or None if a measurement failed; and sentences about the bottleneck
            and the setting.

        Raises:
            UserError: An image cannot be read.
            KeyboardInterrupt: The user interrupted the measurement.
        """
        for position in self._workload.positions.tolist():
            self._workload.index.read(position)  # loads the file into the page cache, for equal conditions
        settings = list_backends(threads, workers, on_gpu=self._workload.on_gpu)
        measured = self._measure([self._candidate(setting) for setting in settings])
        best_dali = self._best_dali(best_of(measured, own_backend(self._workload)))
        working = [each for each in (best_dali, best_of(measured, "paddle.io")) if each is not None]
        if not working:
            return None, ["No loader could be measured completely, so no setting is recommended."]
        done = [each for each in self.candidates if not each.reason]
        fastest = {
            setting: max(each.rate.median for each in done if each.key.backend == setting.backend)
            for setting in working
        }
        return self._measure_best(cheapest_good(fastest, working))

    def _best_dali(self, best: LoaderSetting | None) -> LoaderSetting | None:
        """Returns a DALI setting with the best prefetch depth and decoder, which are measured separately."""
        if best is None:
            return None
        specs = self._workload.split.dataset.transform_ops
        random_crop = len(specs) > 1 and specs[1].uses_window
        configured = self._workload.dali_settings(best)
        variants = [
            each
            for each in list_variants(best, random_crop=random_crop)
            if not each.dali or self._workload.dali_settings(each) != configured
        ]
        labels = {**best.labels(), "decoder": AS_CONFIGURED}
        same = loader_candidate(best, self._workload, self._timer, labels=labels)
        tried = self._measure([same, *map(self._candidate, variants)])
        prefetch = best_of([each for each in tried if each.key.prefetch is not None], best.backend)
        decoder = best_of([each for each in tried if each.key.prefetch is None], best.backend)
        if prefetch is not None:
            best = replace(best, prefetch=prefetch.prefetch)
        if decoder is not None:
            best = replace(best, decoder=decoder.decoder, dali=decoder.dali)
        return best

    def _measure_best(self, best: LoaderSetting) -> tuple[LoaderSetting | None, list[str]]:
        """Measures the best setting completely and up to each stage, and compares it with the present one."""
        present = present_setting(self._workload)
        same = best.describe() == present.describe()
        finals = {BEST: self._final_candidate("setting", BEST, best)}
        finals |= {} if same else {PRESENT: self._final_candidate("setting", PRESENT, present)}
        finals |= {
            stage: self._final_candidate("up to", stage, replace(best, stage=stage)) for stage in STAGES[:-1]
        }
        cold = reading_candidate(self._workload, best, self._timer.seconds, cold=True)
        finals[COLD] = cold
        for name in (BEST, PRESENT) if not same else ():
            finals[name].base = ("of present", finals[PRESENT])
        self._measure(list(finals.values()))
        lost = {name for name, each in finals.items() if each.reason}
        if lost - {PRESENT, COLD}:
            return None, ["The best setting was not measured completely, so no setting is recommended."]
        rates = {stage: finals[stage].rate.median for stage in STAGES[:-1]}
        rates["hand-over"] = finals[BEST].rate.median
        loads = finals[BEST].metrics().get("GPU load")
        bottleneck = [
            find_bottleneck(rates, best, None if loads is None else loads.median / 100),
            describe_disk(cold.rate.median if cold.samples else None, rates["hand-over"], cold.reason),
        ]
        if PRESENT in lost:
            return best, [*bottleneck, f"Use {best.describe()}: the present setting could not be measured."]
        chosen, advice = advise(best, present, None if same else finals[BEST].ratio(finals[PRESENT]))
        return chosen, [*bottleneck, advice]

    def _candidate(self, setting: LoaderSetting) -> Candidate[LoaderSetting]:
        return loader_candidate(setting, self._workload, self._timer)

    def _final_candidate(self, label: str, value: str, setting: LoaderSetting) -> Candidate[LoaderSetting]:
        name = f"{label} {value}, {setting.describe()}"
        labels: dict[str, Label] = {label: value, "of": setting.describe()}
        return loader_candidate(setting, self._workload, self._timer, name, labels)

    def _measure(self, candidates: Loaders) -> Loaders:
        self.candidates += candidates
        bare = self.candidates[0]  # the first setting of list_backends
        for candidate in candidates:
            if "of" not in candidate.labels:
                candidate.base = ("of bare DALI", bare)
        self._measure_rounds(candidates)
        return candidates


def best_of(measured: Iterable[Candidate[LoaderSetting]], backend: Backend) -> LoaderSetting | None:
    """Returns the cheapest good setting of a backend, or None if no setting was measured completely."""
    speeds = {
        each.key: each.rate.median for each in measured if each.key.backend == backend and not each.reason
    }
    costs = sorted(speeds, key=lambda setting: (setting.workers, setting.prefetch or 0, bool(setting.dali)))
    return cheapest_good(speeds, costs) if speeds else None


def quick_candidates(
    workload: LoaderWorkload, workers: Sequence[int], timer: BatchTimer, *, mixup: bool = False
) -> Loaders:
    """Returns the bare pipeline, ppcls's DALI loader, and its paddle.io loader with each number of workers.

    If the bare pipeline does not support the images or the transforms, its row gives the reason.
    """
    dali = dali_setting(workload)
    settings = {_BARE: replace(dali, backend="bare DALI"), _OURS: dali}
    if mixup:
        settings["ppcls, DALI + Mixup"] = replace(dali, mixup=True)
    for count in workers:
        settings[f"ppcls, paddle.io, {counted(count, 'worker')}"] = LoaderSetting("paddle.io", count)
    loaders = [
        loader_candidate(setting, workload, timer, name, {"loader": name})
        for name, setting in settings.items()
    ]
    for loader in loaders:
        loader.base = (f"of {_BARE}", loaders[0])
    return loaders


def compare_loaders(loaders: Loaders) -> Iterator[str]:
    """Yields sentences that compare the speed of ppcls's DALI loader with that of its other loaders."""
    ours = next(each for each in loaders if each.name == _OURS)
    for each in loaders[2:]:
        if ours.samples and each.samples:
            times = format_ratio_with_range(ours.ratio(each).values, "times")
            yield f"{_OURS} has {times} the images/s of {each.name}."
