"""How a batch is mixed: decided for each step of all ranks, in pure numpy.

Rows ``2k`` and ``2k + 1`` of the global batch are partners, each of the other. So partners are on one
rank, and a global batch is mixed alike by any number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from ppcls.config.sections.transform import BatchTransform, CutmixOperator, MixupOperator, OpSampler
from ppcls.data.sampling.order import Cursor
from ppcls.data.transforms.specs.rng import step_fractions

# The columns of a step's numbers: which transform, how much, and where.
_CHOICE, _SHARE, _ROW, _COLUMN = range(4)
_DRAWS = 4

Draws = NDArray[np.float64]
Size = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Rows ``[top, bottom)`` and columns ``[left, right)`` of an image."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """Pixels."""
        return (self.bottom - self.top) * (self.right - self.left)


@dataclass(frozen=True)
class Mix:
    """What happens to every image of a batch.

    Attributes:
        kept: Weight of its own label, 0..1, without a window 0.5..1; the partner's is the rest.
        window: Pixels that become the partner's; None where all are summed up by the labels' weights.
    """

    kept: float = 1.0
    window: Window | None = None


def decide_mix(spec: BatchTransform, seed: int, cursor: Cursor, size: Size) -> Mix:
    """Decides how a step's images are mixed.

    Args:
        spec: The batch transform.
        seed: The run's seed, >= 0.
        cursor: The step.
        size: (height, width) of the images.
    """
    return _decide(spec, step_fractions(seed, cursor.epoch, cursor.step, _DRAWS), size)


@singledispatch
def _decide(spec: BatchTransform, draws: Draws, size: Size) -> Mix:
    raise NotImplementedError(f"mixing knows no {spec.kind}")


def _beta(alpha: float, uniform: float) -> float:
    """Returns Beta(alpha, alpha)'s value at a quantile in [0, 1)."""
    return float(betaincinv(alpha, alpha, uniform))


@_decide.register
def _(spec: MixupOperator, draws: Draws, size: Size) -> Mix:
    """Weights as the paper's: two partners with theirs exchanged are the same two images."""
    share = _beta(spec.alpha, draws[_SHARE])
    return Mix(max(share, 1.0 - share))


@_decide.register
def _(spec: CutmixOperator, draws: Draws, size: Size) -> Mix:
    """A window of the image's aspect ratio around a random pixel, cut off at the edges (equation 2)."""
    side = math.sqrt(1.0 - _beta(spec.alpha, draws[_SHARE]))
    (top, bottom), (left, right) = (
        _cut(length, int(length * side), int(length * draws[column]))
        for length, column in zip(size, (_ROW, _COLUMN), strict=True)
    )
    window = Window(top, bottom, left, right)
    return Mix(1.0 - window.area / math.prod(size), window)


def _cut(length: int, wanted: int, centre: int) -> tuple[int, int]:
    """Returns where a stretch of ``wanted`` around ``centre`` begins and ends within ``[0, length)``."""
    begin = centre - wanted // 2
    return max(begin, 0), min(begin + wanted, length)


@_decide.register
def _(spec: OpSampler, draws: Draws, size: Size) -> Mix:
    mixup, cutmix = spec.MixupOperator, spec.CutmixOperator
    if draws[_CHOICE] < mixup.prob:
        return _decide(MixupOperator(alpha=mixup.alpha), draws, size)
    if draws[_CHOICE] < mixup.prob + cutmix.prob:
        return _decide(CutmixOperator(alpha=cutmix.alpha), draws, size)
    return Mix()
