"""Conclusions from measured loaders: the bottleneck, and the setting to use."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from ppcls.bench.loader.settings import AS_CONFIGURED, STAGES, Backend, LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Measurements
from ppcls.bench.results.schema import Quantity
from ppcls.bench.results.tables import number
from ppcls.data.build import describe_feed
from ppcls.data.loaders.dali.settings import resolve_dali_settings

Bottleneck = Literal["disk", "decode", "transform", "hand-over", "GPU"]
_LOADER = "DataLoader.Train.loader"
_BUSY = 0.9  # load of a GPU without idle time
_AS_GOOD = 0.97  # share of the best speed from which a cheaper setting is preferred
_REMEDIES: dict[Bottleneck, str] = {
    "disk": "use a faster or nearer drive, containers instead of small files (ppcls dataset convert), or "
    "smaller images (ppcls dataset resize)",
    "decode": "use smaller images (ppcls dataset resize), more cores, or a GPU that decodes",
    "transform": "use cheaper transforms, more cores, or a GPU that transforms",
    "hand-over": "use DALI instead of paddle.io, or a float16 NormalizeImage (output_fp16)",
    "GPU": "decode on the CPU (decode_on: cpu), or use smaller images (ppcls dataset resize)",
}
AnySetting = TypeVar("AnySetting", bound=Hashable)


@dataclass(frozen=True)
class LoaderLimit:
    """What limits a loader.

    Attributes:
        bottleneck: Stage, or the GPU.
        text: Figures, and what helps.
    """

    bottleneck: Bottleneck
    text: str


def find_bottleneck(
    stages: Mapping[Stage, float], whole: float, *, on_gpu: bool = False, gpu_load: float | None = None
) -> LoaderLimit:
    """Returns what limits a loader: its slowest stage, or the GPU if that runs the slowest stage.

    Args:
        stages: Images per second of each stage alone.
        whole: Images per second of all stages together.
        on_gpu: Whether the GPU decodes and transforms.
        gpu_load: Load of the GPU while all stages work together, 0..1; None if unknown.
    """
    slowest = min(stages, key=lambda name: stages[name])
    others = [f"{name} {number(stages[name])}" for name in STAGES if name in stages and name != slowest]
    by_gpu = on_gpu and slowest in ("decode", "transform")
    bottleneck: Bottleneck = slowest
    limit = slowest + (" on the GPU" if by_gpu else "")
    if by_gpu and gpu_load is not None and gpu_load >= _BUSY:
        bottleneck, limit = "GPU", f"the GPU, busy {gpu_load:.0%} of the time, with {slowest}"
    text = (
        f"The bottleneck is {limit}: {number(stages[slowest])} images/s alone ({', '.join(others)}); all "
        f"stages together, sharing the cores: {number(whole)}. To speed up, {_REMEDIES[bottleneck]}."
    )
    return LoaderLimit(bottleneck, text)


def cheapest_good(speeds: Mapping[AnySetting, Quantity], cheapest_first: Sequence[AnySetting]) -> AnySetting:
    """Returns the cheapest setting that is about as fast as the fastest."""
    best = max(speed.median for speed in speeds.values())
    return next(setting for setting in cheapest_first if speeds[setting].median >= _AS_GOOD * best)


def exceeds_noise(ratios: Quantity) -> bool:
    """Returns whether a candidate was faster in every round, by more than the rounds differ.

    Args:
        ratios: Its speed over the other candidate's, one per round.
    """
    return ratios.low > 1 and ratios.median - 1 > (ratios.high - ratios.low) / 2


@dataclass(frozen=True)
class Choice:
    """Setting that a sweep recommends, and the present one.

    Attributes:
        best: Best setting found.
        present: Setting of the config.
    """

    best: LoaderSetting
    present: LoaderSetting

    @property
    def same(self) -> bool:
        """Whether the config has the best setting already."""
        return self.best.describe() == self.present.describe()


def own_backend(workload: LoaderWorkload) -> Backend:
    """Returns the backend of our DALI loader on the config's device."""
    return "DALI GPU" if workload.on_gpu else "DALI CPU"


def dali_setting(workload: LoaderWorkload) -> LoaderSetting:
    """Returns our DALI loader with the config's settings."""
    dali = resolve_dali_settings(workload.split.loader.dali, workload.runtime)
    return LoaderSetting(own_backend(workload), "config", dali.threads, dali.prefetch)


def present_setting(workload: LoaderWorkload) -> LoaderSetting:
    """Returns the config's own setting."""
    config = workload.config
    feed = describe_feed(workload.split, workload.runtime, config.Arch, use_dali=config.Global.use_dali)
    if feed.uses_dali:
        return dali_setting(workload)
    return LoaderSetting("paddle.io", "config", workload.split.loader.num_workers)


def choose(
    sweep: Sequence[Measurements[LoaderSetting]], present: LoaderSetting, dali: Backend
) -> Choice | None:
    """Returns the best setting of a sweep, combined from the axes that were varied.

    Args:
        sweep: Measurements; those that failed are ignored.
        present: Setting of the config.
        dali: Backend of our DALI loader.

    Returns:
        The choice; None if no setting was measured that a config can express.
    """
    speeds = {
        measurement.key: measurement.rate()
        for measurement in sweep
        if measurement.samples
        and not measurement.reason
        and measurement.key.chain == "config"
        and measurement.key.backend in (dali, "paddle.io")
    }
    best = []
    if any(setting.backend == dali for setting in speeds):
        best.append(_best_dali(speeds, dali, present))
    if workers := _axis(speeds, "workers", "paddle.io"):
        best.append(cheapest_good(workers, sorted(workers, key=lambda setting: setting.workers)))
    if not best:
        return None
    fastest = {
        setting: max(
            (speed for other, speed in speeds.items() if other.backend == setting.backend),
            key=lambda speed: speed.median,
        )
        for setting in best
    }
    return Choice(cheapest_good(fastest, best), present)


def _axis(
    speeds: Mapping[LoaderSetting, Quantity], varied: str, backend: Backend
) -> dict[LoaderSetting, Quantity]:
    return {key: speed for key, speed in speeds.items() if (key.varied, key.backend) == (varied, backend)}


def _best_dali(
    speeds: Mapping[LoaderSetting, Quantity], dali: Backend, present: LoaderSetting
) -> LoaderSetting:
    """Combines the best threads, prefetch depth and decoder, each measured with the others as configured."""
    threads, prefetch, decoder = (_axis(speeds, axis, dali) for axis in ("workers", "prefetch", "decoder"))
    if threads:
        best = cheapest_good(threads, sorted(threads, key=lambda setting: setting.workers))
    else:
        workers = max(setting.workers for setting in (*prefetch, *decoder))
        best = LoaderSetting(dali, "config", workers)
    if present.backend == dali:
        best = replace(best, prefetch=present.prefetch)
    if prefetch:
        chosen = cheapest_good(prefetch, sorted(prefetch, key=lambda setting: setting.prefetch or 0))
        best = replace(best, prefetch=chosen.prefetch)
    if decoder:
        chosen = cheapest_good(decoder, sorted(decoder, key=lambda setting: setting.decoder != AS_CONFIGURED))
        best = replace(best, decoder=chosen.decoder, dali=chosen.dali)
    return best


def config_values(setting: LoaderSetting) -> dict[str, Any]:
    """Returns the config keys of a setting: path to value."""
    if setting.backend == "paddle.io":
        return {"Global.use_dali": False, f"{_LOADER}.num_workers": setting.workers}
    values: dict[str, Any] = {"Global.use_dali": True, f"{_LOADER}.dali.num_threads": setting.workers}
    if setting.prefetch is not None:
        values[f"{_LOADER}.dali.prefetch_queue_depth"] = setting.prefetch
    return values | {f"{_LOADER}.dali.{name}": value for name, value in setting.dali.items()}


def advise(choice: Choice, ratios: Quantity | None) -> tuple[LoaderSetting, str]:
    """Returns the setting to use, and a sentence about it.

    Args:
        choice: Best and present setting.
        ratios: Speed of the best setting over the present one, one per round; None if they are the same.
    """
    present, best = choice.present.describe(), choice.best.describe()
    if ratios is None:
        return choice.present, f"Keep the present setting ({present}): no other setting tried is faster."
    span = f"({ratios.low:.2f} to {ratios.high:.2f})"
    if not exceeds_noise(ratios):
        return choice.present, (
            f"Keep the present setting ({present}): the best other one ({best}) reaches {ratios.median:.2f} "
            f"times its images/s {span}, which is within noise."
        )
    overrides = " ".join(f"{name}={value}" for name, value in config_values(choice.best).items())
    return choice.best, (
        f"Use {best}: {ratios.median:.2f} times the images/s of the present setting, {present} {span}; "
        f"-o {overrides}"
    )
