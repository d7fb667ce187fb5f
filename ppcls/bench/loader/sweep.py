"""Sweep over loader settings: finds the best one, and measures it against the present one and by stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ppcls.bench.loader.advice import advise, cheapest_good, find_bottleneck, own_backend, present_setting
from ppcls.bench.loader.runners import BatchTimer, loader_candidate
from ppcls.bench.loader.settings import (
    AS_CONFIGURED,
    STAGES,
    Backend,
    LoaderSetting,
    Stage,
    list_backends,
    list_variants,
)
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate, Measurements, run_rounds
from ppcls.bench.results.schema import Quantity, ResultRow
from ppcls.data.transforms.specs import RandCropImage

BEST, PRESENT = "best found", "present"
Measured = Measurements[LoaderSetting]


class LoaderSweep:
    """Measures settings, and keeps what is known.

    Args:
        workload: Images.
        timer: Timer of batches.
        rounds: Number of rounds.
        report: Receives one line for people per measurement.
        keep: Receives the rows so far, after each round.

    Attributes:
        measured: Measurements so far.
    """

    def __init__(
        self,
        workload: LoaderWorkload,
        timer: BatchTimer,
        rounds: int,
        report: Callable[[str], None],
        keep: Callable[[list[ResultRow]], None],
    ) -> None:
        self._workload, self._timer, self._rounds = workload, timer, rounds
        self._report, self._keep = report, keep
        self.measured: list[Measured] = []
        self._present = present_setting(workload)

    def run(self, threads: Sequence[int], workers: Sequence[int]) -> tuple[LoaderSetting | None, list[str]]:
        """Measures backends, then variants of our DALI loader, then the best setting.

        Args:
            threads: Numbers of DALI's threads.
            workers: Numbers of paddle.io's workers.

        Returns:
            The setting to use, None if unknown; and sentences about bottleneck and setting.

        Raises:
            UserError: An image cannot be read.
            KeyboardInterrupt: Measuring was interrupted.
        """
        for position in self._workload.positions.tolist():
            self._workload.index.read(position)  # into the page cache, so that all settings find it there
        settings = list_backends(threads, workers, on_gpu=self._workload.on_gpu)
        measured = self._measure([loader_candidate(each, self._workload, self._timer) for each in settings])
        best = [
            setting
            for setting in (self._best_dali(measured), best_of(measured, "paddle.io", "workers"))
            if setting is not None
        ]
        if not best:
            return None, ["The config's chain was not measured completely, so no setting is recommended."]
        fastest = {setting: fastest_of(self.measured, setting.backend) for setting in best}
        return self._measure_best(cheapest_good(fastest, best))

    def _best_dali(self, measured: Sequence[Measured]) -> LoaderSetting | None:
        """Returns the best threads, prefetch depth and decoder; the latter two are tried independently."""
        backend = own_backend(self._workload)
        best = best_of(measured, backend, "workers")
        if best is None:
            return None
        specs = self._workload.split.dataset.transform_ops
        random_crop = len(specs) > 1 and isinstance(specs[1], RandCropImage)
        variants = [
            setting
            for setting in list_variants(best, random_crop=random_crop)
            if not setting.dali or not self._repeats_config(setting)
        ]
        labels = {**best.labels(), "decoder": AS_CONFIGURED}
        candidates = [loader_candidate(best, self._workload, self._timer, labels=labels)]
        candidates += [loader_candidate(setting, self._workload, self._timer) for setting in variants]
        tried = self._measure(candidates)
        prefetch = best_of([each for each in tried if each.key.prefetch is not None], backend, "prefetch")
        decoder = best_of([each for each in tried if each.key.prefetch is None], backend, "decoder")
        if prefetch is not None:
            best = replace(best, prefetch=prefetch.prefetch)
        if decoder is not None:
            best = replace(best, decoder=decoder.decoder, dali=decoder.dali)
        return best

    def _repeats_config(self, setting: LoaderSetting) -> bool:
        """Returns whether a setting of the decoder is that of the config."""
        configured = self._workload.dali_settings(setting.workers, None)
        return self._workload.dali_settings(setting.workers, None, **setting.dali) == configured

    def _measure_best(self, best: LoaderSetting) -> tuple[LoaderSetting | None, list[str]]:
        """Measures the best setting against the present one, and up to each stage."""
        present, same = self._present, best.describe() == self._present.describe()
        candidates = {
            name: loader_candidate(
                setting,
                self._workload,
                self._timer,
                f"{name}, {setting.describe()}",
                {"setting": name, "of": setting.describe()},
            )
            for name, setting in ((BEST, best), *(() if same else ((PRESENT, present),)))
        }
        for stage in STAGES[:-1]:
            labels = {"up to": stage, "of": best.describe()}
            setting, name = replace(best, stage=stage), f"up to {stage}, {best.describe()}"
            candidates[stage] = loader_candidate(setting, self._workload, self._timer, name, labels)
        finals = dict(zip(candidates, self._measure(list(candidates.values())), strict=True))
        lost = {name for name, each in finals.items() if each.reason}
        if lost - {PRESENT}:
            return None, ["The best setting was not measured completely, so no setting is recommended."]
        rates: dict[Stage, float] = {stage: finals[stage].rate.median for stage in STAGES[:-1]}
        rates["hand-over"] = finals[BEST].rate.median
        loads = finals[BEST].metrics().get("GPU load")
        limit = find_bottleneck(rates, best, None if loads is None else loads.median / 100)
        if PRESENT in lost:
            return best, [limit.text, f"Use {best.describe()}: the present setting could not be measured."]
        ratios = None if same else finals[BEST].ratio(finals[PRESENT])
        chosen, advice = advise(best, present, ratios)
        return chosen, [limit.text, advice]

    def _measure(self, candidates: Sequence[Candidate[LoaderSetting]]) -> list[Measured]:
        def keep(measured: Iterable[Measured]) -> None:
            self._keep(make_rows([*self.measured, *measured]))

        rounds = run_rounds(candidates, self._rounds, self._report, keep)
        self.measured += rounds.measured
        if rounds.interrupt is not None:
            raise rounds.interrupt
        return rounds.measured


def best_of(measured: Iterable[Measured], backend: Backend, axis: str) -> LoaderSetting | None:
    """Returns the cheapest good setting of a backend; None if none was measured completely.

    Args:
        measured: Measurements; those that failed are ignored.
        backend: Backend.
        axis: Field of a setting, by which the cheaper one has the lower value.
    """
    speeds = {each.key: each.rate for each in measured if each.key.backend == backend and not each.reason}
    cost: dict[str, Callable[[LoaderSetting], int]] = {
        "workers": lambda setting: setting.workers,
        "prefetch": lambda setting: setting.prefetch or 0,
        "decoder": lambda setting: bool(setting.dali),
    }
    return cheapest_good(speeds, sorted(speeds, key=cost[axis])) if speeds else None


def fastest_of(measured: Iterable[Measured], backend: Backend) -> Quantity:
    """Returns the speed of a backend's fastest whole loader."""
    rates = [each.rate for each in measured if each.key.backend == backend and not each.reason]
    return max(rates, key=lambda rate: rate.median)


def make_rows(measured: Sequence[Measured]) -> list[ResultRow]:
    """Returns a row for each measurement, with its ratio to the bare pipeline or to the present setting."""
    bare = next((each for each in measured if each.key.backend == "bare DALI"), None)
    present = next((each for each in measured if each.labels.get("setting") == PRESENT), None)
    rows = []
    for each in measured:
        if "setting" in each.labels:
            rows.append(each.row(present, "of present"))
        else:
            rows.append(each.row(None if "up to" in each.labels else bare, "of bare DALI"))
    return rows
