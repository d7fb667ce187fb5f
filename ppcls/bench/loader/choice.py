"""From what was measured to the setting to use, as a sentence and as values of the config. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ppcls.bench.loader.bottleneck import beyond_noise, frugal
from ppcls.bench.loader.contender import AS_CONFIGURED, Backend, Contender, Varied
from ppcls.bench.loader.rounds import Run
from ppcls.bench.results.results import Metric
from ppcls.config.schema import Config
from ppcls.config.sections.loader import Split
from ppcls.data.build import describe_feed
from ppcls.data.loaders.dali.settings import resolve_dali_settings
from ppcls.runtime.start import Runtime

_LOADER = "DataLoader.Train.loader"


@dataclass(frozen=True)
class Choice:
    """What a sweep says.

    Attributes:
        best: The setting that is worth taking.
        present: The config's own.
    """

    best: Contender
    present: Contender

    @property
    def same(self) -> bool:
        """Whether the config has the best already."""
        return self.best.describe() == self.present.describe()


def present(config: Config, split: Split, runtime: Runtime, *, cold: bool) -> Contender:
    """Returns the config's own setting."""
    if describe_feed(split, runtime, config.Arch, use_dali=config.Global.use_dali).uses_dali:
        dali = resolve_dali_settings(split.loader.dali, runtime)
        return Contender(own_backend(runtime), "config", dali.threads, dali.prefetch, cold=cold)
    return Contender("paddle.io", "config", split.loader.num_workers, cold=cold)


def own_backend(runtime: Runtime) -> Backend:
    """Returns what DALI is on the run's device."""
    return "DALI GPU" if runtime.device_id is not None else "DALI CPU"


def choose(sweep: Mapping[Contender, Sequence[Run]], now: Contender, dali: Backend) -> Choice | None:
    """Returns the best setting of a sweep, put together from what was varied.

    Args:
        sweep: Runs of each contender.
        now: The config's own setting; what is chosen has the same page cache.
        dali: What of DALI a config can ask for.

    Returns:
        The choice; None where nothing was measured that a config can ask for.
    """
    speeds = {
        each: Metric(tuple(run.rate for run in runs), "images/s")
        for each, runs in sweep.items()
        if each.chain == "config" and each.cold == now.cold and each.backend in (dali, "paddle.io")
    }
    found = []
    if any(each.backend == dali for each in speeds):
        found.append(_best_dali(speeds, dali, now))
    if workers := _of(speeds, "workers", "paddle.io"):
        found.append(frugal(workers, sorted(workers, key=lambda each: each.workers)))
    if not found:
        return None
    fastest = {each: _as_measured(each, speeds) for each in found}
    return Choice(frugal(fastest, found), now)


def _of(speeds: Mapping[Contender, Metric], varied: Varied, backend: Backend) -> dict[Contender, Metric]:
    return {each: speed for each, speed in speeds.items() if (each.varied, each.backend) == (varied, backend)}


def _best_dali(speeds: Mapping[Contender, Metric], dali: Backend, now: Contender) -> Contender:
    """Puts the best threads, prefetch and decoder together, each found with the others as configured."""
    threads, prefetch, decoder = (_of(speeds, each, dali) for each in ("workers", "prefetch", "decoder"))
    if threads:
        best = frugal(threads, sorted(threads, key=lambda each: each.workers))
    else:
        workers = max(each.workers for each in (*prefetch, *decoder))
        best = Contender(dali, "config", workers, cold=now.cold)
    if now.backend == dali:
        best = replace(best, prefetch=now.prefetch)
    if prefetch:
        chosen = frugal(prefetch, sorted(prefetch, key=lambda each: each.prefetch or 0))
        best = replace(best, prefetch=chosen.prefetch)
    if decoder:
        chosen = frugal(decoder, sorted(decoder, key=lambda each: each.decoder != AS_CONFIGURED))
        best = replace(best, decoder=chosen.decoder, dali=chosen.dali)
    return best


def _as_measured(contender: Contender, speeds: Mapping[Contender, Metric]) -> Metric:
    """Returns the speed of the fastest that shares a contender's backend."""
    own = (speed for each, speed in speeds.items() if each.backend == contender.backend)
    return max(own, key=lambda speed: speed.median)


def values_of(contender: Contender) -> dict[str, Any]:
    """Returns what a config needs to ask for a setting: path to value."""
    if contender.backend == "paddle.io":
        return {"Global.use_dali": False, f"{_LOADER}.num_workers": contender.workers}
    values: dict[str, Any] = {"Global.use_dali": True, f"{_LOADER}.dali.num_threads": contender.workers}
    if contender.prefetch is not None:
        values[f"{_LOADER}.dali.prefetch_queue_depth"] = contender.prefetch
    return values | {f"{_LOADER}.dali.{name}": value for name, value in contender.dali.items()}


def advise(choice: Choice, ratios: Metric | None) -> tuple[Contender, str]:
    """Returns the setting to use, and a sentence that says so.

    Args:
        choice: The best and the present one.
        ratios: The best one's speed over the present one's, round by round; None where they are the same.
    """
    if ratios is None:
        return choice.present, (
            f"Keep the present setting ({choice.present.describe()}): nothing else that was tried is faster."
        )
    if not beyond_noise(ratios):
        return choice.present, (
            f"Keep the present setting ({choice.present.describe()}): the best of the others "
            f"({choice.best.describe()}) makes {ratios.median:.2f} times its images/s "
            f"({ratios.low:.2f} to {ratios.high:.2f}), which is no gain beyond noise."
        )
    return choice.best, (
        f"Use {choice.best.describe()}: {ratios.median:.2f} times the images/s of the present setting, "
        f"{choice.present.describe()} ({ratios.low:.2f} to {ratios.high:.2f}); "
        f"-o {' '.join(f'{name}={value}' for name, value in values_of(choice.best).items())}"
    )
