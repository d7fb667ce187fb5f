"""Sweep over loader settings: measures all of them, then the best against the present one and its stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ppcls.bench.loader.advice import Choice, choose, own_backend, present_setting
from ppcls.bench.loader.bare import bare_chains
from ppcls.bench.loader.runners import BatchTimer, Counts, batch_candidate, load_batches
from ppcls.bench.loader.settings import BEST, PRESENT, STAGES, LoaderSetting, SweepRange, list_settings
from ppcls.bench.loader.stages import run_stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate, Key, Measurements, run_rounds
from ppcls.data.supported import check_dali, check_numpy
from ppcls.data.transforms.specs import RandCropImage
from ppcls.errors import UserError


@dataclass(frozen=True)
class SweepPlan:
    """Settings to measure.

    Attributes:
        settings: Settings that can run here.
        unsupported: Settings that cannot, with the reason.
        remarks: Remarks for the reader, one sentence each.
    """

    settings: tuple[LoaderSetting, ...]
    unsupported: list[Measurements[LoaderSetting]]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class SweepResult:
    """Measurements of a sweep.

    Attributes:
        sweep: Measurements of all settings, unsupported ones included.
        choice: Best and present setting; None if the config's chain was not measured completely.
        finals: Measurements of `BEST`, of `PRESENT` if that differs, and of each stage of the best setting.
        interrupt: Interrupt that ended the sweep early, to be raised once results are written.
    """

    sweep: list[Measurements[LoaderSetting]]
    choice: Choice | None = None
    finals: dict[str, Measurements[str]] = field(default_factory=dict)
    interrupt: KeyboardInterrupt | None = None


def make_plan(workload: LoaderWorkload, sweep_range: SweepRange) -> SweepPlan:
    """Returns the settings to measure.

    Raises:
        UserError: No setting can run here.
    """
    remarks = []
    specs = workload.split.dataset.transform_ops
    bare = bare_chains(workload)
    missing = [chain for chain in sweep_range.chains if chain not in bare]
    if "bare DALI" in sweep_range.backends and missing:
        remarks.append(
            f"There is no bare pipeline for {', '.join(missing)}: it supports files of 8-bit colour images "
            "and the chain DecodeImage, RandCropImage, RandFlipImage, NormalizeImage."
        )
    random_crop = len(specs) > 1 and isinstance(specs[1], RandCropImage)
    settings = list_settings(sweep_range, on_gpu=workload.on_gpu, random_crop=random_crop, bare=bare)
    settings = [setting for setting in settings if not _repeats_config(setting, workload)]
    reasons = {setting: _unsupported(setting, workload) for setting in settings}
    able = tuple(setting for setting, reason in reasons.items() if not reason)
    if not able:
        reason = (
            " (dali-gpu needs a GPU)" if "DALI GPU" in sweep_range.backends and not workload.on_gpu else ""
        )
        raise UserError(f"no setting is left to measure{reason}; widen --backends, --chains or --vary")
    unsupported = [Measurements(key, key.describe(), [], reason) for key, reason in reasons.items() if reason]
    return SweepPlan(able, unsupported, tuple(remarks))


def _repeats_config(setting: LoaderSetting, workload: LoaderWorkload) -> bool:
    """Returns whether a setting of the decoder is that of the config."""
    if not setting.dali:
        return False
    configured = workload.dali_settings(setting.workers, None)
    return workload.dali_settings(setting.workers, None, **setting.dali) == configured


def _unsupported(setting: LoaderSetting, workload: LoaderWorkload) -> str:
    """Returns why a setting cannot run here; nothing if it can."""
    ops = workload.ops
    if setting.chain == "read" or setting.backend in ("read only", "bare DALI"):
        return ""
    try:
        if setting.backend == "paddle.io":
            check_numpy(ops, "transform_ops")
        else:
            device = workload if setting.backend == "DALI GPU" else workload.on_cpu
            settings = device.dali_settings(setting.workers, None, **setting.dali)
            check_dali(ops, "transform_ops", settings)
    except UserError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class SweepRunner:
    """Measures a plan.

    Attributes:
        workload: Images.
        timer: Timer of batches.
        rounds: Number of rounds.
        report: Receives one line for people per measurement.
    """

    workload: LoaderWorkload
    timer: BatchTimer
    rounds: int
    report: Callable[[str], None]

    def run(self, plan: SweepPlan, keep: Callable[[SweepResult], None]) -> SweepResult:
        """Measures all settings, then the best against the present one, and the stages of the best.

        Args:
            plan: Settings.
            keep: Receives the measurements so far, after each round of the sweep.

        Raises:
            UserError: An image cannot be read.
            KeyboardInterrupt: The interrupt came before anything was measured.
        """
        self._read_all()
        candidates = [
            self._stream(
                setting,
                f"{setting.describe()}, {setting.chain}",
                setting,
                partial(load_batches, setting, self.workload),
            )
            for setting in plan.settings
        ]

        def result(measured: list[Measurements[LoaderSetting]]) -> SweepResult:
            return SweepResult([*measured, *plan.unsupported])

        sweep = run_rounds(candidates, self.rounds, self.report, lambda measured: keep(result(measured)))
        outcome = replace(result(sweep.measured), interrupt=sweep.interrupt)
        present = present_setting(self.workload)
        choice = choose(sweep.measured, present, own_backend(self.workload))
        if choice is None or sweep.interrupt is not None:
            return outcome
        try:
            final = run_rounds(self._final_candidates(choice), self.rounds, self.report)
        except KeyboardInterrupt as interrupt:
            return replace(outcome, interrupt=interrupt)
        if final.interrupt is None and not any(measurements.reason for measurements in final.measured):
            return replace(
                outcome,
                choice=choice,
                finals={measurements.key: measurements for measurements in final.measured},
            )
        failed = [
            Measurements(choice.best, measurements.name, [], f"{measurements.name}: {measurements.reason}")
            for measurements in final.measured
            if measurements.reason
        ]
        return replace(outcome, sweep=[*outcome.sweep, *failed], interrupt=final.interrupt)

    def _read_all(self) -> None:
        """Reads all images, so that all settings find them in the operating system's page cache."""
        for position in self.workload.positions.tolist():
            self.workload.index.read(position)

    def _final_candidates(self, choice: Choice) -> Sequence[Candidate[str]]:
        settings = {BEST: choice.best} | ({} if choice.same else {PRESENT: choice.present})
        streams = {
            name: (setting, partial(load_batches, setting, self.workload))
            for name, setting in settings.items()
        }
        for stage in STAGES:
            streams[stage] = (choice.best, partial(run_stage, stage, choice.best, self.workload))
        return [
            self._stream(name, f"{name}, {setting.describe()}", setting, stream)
            for name, (setting, stream) in streams.items()
        ]

    def _stream(
        self, key: Key, name: str, setting: LoaderSetting, stream: Callable[[], Counts]
    ) -> Candidate[Key]:
        return batch_candidate(key, name, stream, self.timer, setting.skipped_batches)
