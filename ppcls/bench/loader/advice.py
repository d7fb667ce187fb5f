"""Conclusions from the measurements of loaders: the bottleneck, and the recommended setting."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ppcls.bench.loader.settings import STAGES, Backend, LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.results.schema import Quantity
from ppcls.bench.results.tables import number
from ppcls.commands import set_keys
from ppcls.data.build import dali_settings, describe_feed
from ppcls.report.summary.rounding import format_ratio_with_range

Bottleneck = Literal["disk", "decode", "transform", "hand-over", "GPU"]
_LOADER = "DataLoader.Train.loader"
_BUSY = 0.9  # load from which a GPU counts as fully used
_AS_GOOD = 0.97  # share of the best speed from which a cheaper setting is preferred to the fastest
_REMEDIES: dict[Bottleneck, str] = {
    "disk": "use a faster or nearer drive, containers instead of small files (ppcls dataset convert), or "
    "smaller images (ppcls dataset resize)",
    "decode": "use smaller images (ppcls dataset resize), more cores, or a GPU that decodes",
    "transform": "use cheaper transforms, more cores, or a GPU that transforms",
    "hand-over": "use a float16 NormalizeImage (output_fp16)",
    "GPU": "decode on the CPU (decode_on: cpu), or use smaller images (ppcls dataset resize)",
}
AnySetting = TypeVar("AnySetting", bound=Hashable)


def find_bottleneck(
    rates: Mapping[Stage, float], setting: LoaderSetting, gpu_load: float | None = None
) -> str:
    """Returns sentences about a loader's bottleneck: the stage that takes most time, or the GPU.

    Args:
        rates: For each stage, images per second of a loader that stops after this stage.
        setting: Setting of the loader.
        gpu_load: Load of the GPU while the whole loader runs, 0..1; None if unknown.
    """
    added: dict[Stage, float] = {}
    for stage in STAGES:
        added[stage] = max(0.0, 1 / rates[stage] - sum(added.values()))
    slowest = max(added, key=lambda stage: added[stage])
    bottleneck: Bottleneck = slowest
    limit: str = slowest
    if setting.backend == "DALI GPU" and slowest in ("decode", "transform"):
        limit = f"{slowest} on the GPU"
        if gpu_load is not None and gpu_load >= _BUSY:
            bottleneck = "GPU"
            limit = f"the GPU, which is busy {gpu_load:.0%} of the time with {slowest}"
    steps = ", ".join(f"{stage} {number(rates[stage])}" for stage in STAGES)
    share = added[slowest] / sum(added.values())
    remedy = _REMEDIES[bottleneck]
    if bottleneck == "hand-over" and setting.backend == "paddle.io":
        remedy = f"use DALI instead of paddle.io, or {remedy}"
    return (
        f"The bottleneck is {limit}: {share:.0%} of the time per image (images/s up to each stage: {steps}). "
        f"To speed up loading, {remedy}."
    )


def describe_disk(cold: float | None, whole: float, reason: str) -> str:
    """Returns a sentence about images that are not in memory, which the other measurements do not read.

    Args:
        cold: Images per second that are read from the disk; None if this could not be measured.
        whole: Images per second of the loader with images in memory.
        reason: Why the disk could not be measured; empty if it was.
    """
    if cold is None:
        return f"The images were in memory. The disk was not measured: {reason}."
    if cold < whole:
        return (
            f"The images were in memory. The disk reads only {number(cold)} images/s, so it is the "
            "bottleneck in a first epoch, and in all epochs of a data set that is larger than the memory. "
            f"To speed up reading, {_REMEDIES['disk']}."
        )
    return (
        f"The images were in memory. The disk is no bottleneck: it reads {number(cold)} images/s, and the "
        f"loader could use {number(whole)}."
    )


def cheapest_good(speeds: Mapping[AnySetting, float], cheapest_first: Sequence[AnySetting]) -> AnySetting:
    """Returns the cheapest setting that is about as fast as the fastest one."""
    best = max(speeds.values())
    return next(setting for setting in cheapest_first if speeds[setting] >= _AS_GOOD * best)


def exceeds_noise(ratios: Quantity) -> bool:
    """Returns whether a candidate is faster in every round, by more than half the range of the ratios."""
    return ratios.low > 1 and ratios.median - 1 > (ratios.high - ratios.low) / 2


def own_backend(workload: LoaderWorkload) -> Backend:
    """Returns the backend of ppcls's DALI loader on the config's device."""
    return "DALI GPU" if workload.on_gpu else "DALI CPU"


def dali_setting(workload: LoaderWorkload) -> LoaderSetting:
    """Returns the setting of ppcls's DALI loader in the config."""
    # As in `LoaderWorkload.dali_settings`
    dali = dali_settings(workload.split, workload.runtime, training=False)
    return LoaderSetting(own_backend(workload), dali.threads, dali.prefetch)


def present_setting(workload: LoaderWorkload) -> LoaderSetting:
    """Returns the setting of the loader that the config uses."""
    feed = describe_feed(workload.split, workload.runtime, workload.arch, use_dali=workload.run.use_dali)
    if feed.uses_dali:
        return dali_setting(workload)
    return LoaderSetting("paddle.io", workload.split.loader.num_workers)


def config_values(setting: LoaderSetting) -> dict[str, Any]:
    """Returns the paths and values of the config keys that select a setting."""
    if setting.backend == "paddle.io":
        return {"Global.use_dali": False, f"{_LOADER}.num_workers": setting.workers}
    values: dict[str, Any] = {"Global.use_dali": True, f"{_LOADER}.dali.num_threads": setting.workers}
    if setting.prefetch is not None:
        values[f"{_LOADER}.dali.prefetch_queue_depth"] = setting.prefetch
    return values | {f"{_LOADER}.dali.{name}": value for name, value in setting.dali.items()}


def advise(best: LoaderSetting, present: LoaderSetting, ratios: Quantity | None) -> tuple[LoaderSetting, str]:
    """Returns the recommended setting and a sentence about it.

    Args:
        best: Best measured setting.
        present: Setting of the config.
        ratios: Speed of ``best`` divided by that of ``present``, one ratio per round; None if both settings
            are equal.
    """
    keep = f"Keep the present setting ({present.describe()}): "
    if ratios is None:
        return present, f"{keep}no other measured setting is faster."
    times = format_ratio_with_range(ratios.values, "times")
    if ratios.high < 1:
        return present, f"{keep}the best other setting ({best.describe()}) is slower: {times} its images/s."
    if not exceeds_noise(ratios):
        differs = "the rounds do not show which is faster" if ratios.median > 1 else "it is not faster"
        return present, (
            f"{keep}the best other setting ({best.describe()}) has {times} its images/s; {differs}."
        )
    return best, (
        f"Use {best.describe()}: {times} the images/s of the present setting, {present.describe()}; "
        f"{set_keys(config_values(best))}"
    )
