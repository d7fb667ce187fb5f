"""Which stage of a loader limits it, and which setting is worth taking: rules on measured numbers. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from ppcls.bench.results.results import Metric
from ppcls.bench.results.table import number

Stage = Literal["disk", "decode", "transform", "hand-over"]
STAGES: tuple[Stage, ...] = ("disk", "decode", "transform", "hand-over")
Bottleneck = Literal["disk", "decode", "transform", "hand-over", "GPU"]
_BUSY = 0.9  # load of a GPU that has no time left
_AS_GOOD = 0.97  # of the best; fewer threads are better than that
_REMEDIES: dict[Bottleneck, str] = {
    "disk": "a faster or nearer drive, containers in place of small files (tools/dataset.py convert), or "
    "smaller images (tools/dataset.py resize) help",
    "decode": "smaller images (tools/dataset.py resize), more cores, or a GPU that decodes help",
    "transform": "cheaper transforms, more cores, or a GPU that transforms help",
    "hand-over": "DALI in place of paddle.io, or a float16 NormalizeImage (output_fp16) help",
    "GPU": "decoding on the CPU (decode_on: cpu), or smaller images (tools/dataset.py resize) help",
}
Setting = TypeVar("Setting", bound=Hashable)


@dataclass(frozen=True)
class Verdict:
    """What limits a loader.

    Attributes:
        bottleneck: Its name.
        text: The numbers, and what helps.
    """

    bottleneck: Bottleneck
    text: str


def find_bottleneck(
    stages: Mapping[Stage, float], whole: float, *, on_gpu: bool = False, gpu_load: float | None = None
) -> Verdict:
    """Names what limits a loader: the slowest of its stages, or the GPU where that does the slowest one.

    Args:
        stages: Images a second of each stage alone.
        whole: Images a second of all together.
        on_gpu: Whether the GPU decodes and transforms.
        gpu_load: Its load while all work together, 0..1; None where it is not known.
    """
    slowest = min(stages, key=lambda name: stages[name])
    others = [f"{name} {number(stages[name])}" for name in STAGES if name in stages and name != slowest]
    by_gpu = on_gpu and slowest in ("decode", "transform")
    bottleneck: Bottleneck = slowest
    what = slowest + (", which the GPU does" if by_gpu else "")
    if by_gpu and gpu_load is not None and gpu_load >= _BUSY:
        bottleneck, what = "GPU", f"the GPU, busy {gpu_load:.0%} of the time, by {slowest}"
    text = (
        f"The bottleneck is {what}: alone it makes {number(stages[slowest])} images/s "
        f"({', '.join(others)}); all together, sharing the cores, make {number(whole)}. "
        f"To go faster, {_REMEDIES[bottleneck]}."
    )
    return Verdict(bottleneck, text)


def frugal(speeds: Mapping[Setting, Metric], cheapest_first: Sequence[Setting]) -> Setting:
    """Returns the cheapest setting that is about as fast as the fastest.

    Args:
        speeds: Of each setting; more is better.
        cheapest_first: All settings.
    """
    best = max(metric.median for metric in speeds.values())
    return next(each for each in cheapest_first if speeds[each].median >= _AS_GOOD * best)


def beyond_noise(ratios: Metric) -> bool:
    """Whether one contender was faster than another in every round, by more than the rounds differ.

    Args:
        ratios: Its speed over the other's, round by round.
    """
    return ratios.low > 1 and ratios.median - 1 > (ratios.high - ratios.low) / 2
