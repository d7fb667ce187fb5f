"""Turns a sample's random numbers into decisions about its image: pure NumPy, the same for every backend.

Each random spec registers `decide`, and each spec that changes the size of images registers `sides_after`.
Backends only carry the decisions out, so they cannot disagree. DALI receives the decisions as operator
arguments, without calling Python from its graph.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.transform import CustomTransform, Transform

Sides = NDArray[np.int64]  # [N, 2] heights and widths
Draws = NDArray[np.float32]  # [N, spec.draws] uniform in [0, 1)
Decisions = tuple[NDArray[Any], ...]  # each [N, ...]: one row per sample


@singledispatch
def decide(spec: Transform, draws: Draws, sides: Sides) -> Decisions:
    """Decides what a transform does to each image of a batch.

    Args:
        draws: [N, spec.draws] float32 in [0, 1).
        sides: [N, 2] int64, heights and widths of the images before the transform.

    Returns:
        Arrays [N, ...] that the transform's `apply` and `lower` need, of fixed number and dtypes. Empty for a
        transform that does the same to all images.
    """
    if spec.draws:
        raise NotImplementedError(f"no decisions are registered for {spec.kind}")
    return ()


@decide.register
def decide_custom(spec: CustomTransform, draws: Draws, sides: Sides) -> Decisions:
    """The uniform numbers themselves, [N, spec.draws]."""
    return (draws,) if spec.draws else ()


@singledispatch
def sides_after(spec: Transform, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the images' heights and widths after a transform, [N, 2] int64."""
    return sides


def count_decisions(spec: Transform) -> int:
    """Returns the number of arrays that `decide` returns for a spec; it is the same for all images."""
    return len(decide(spec, np.zeros([1, spec.draws], np.float32), np.full([1, 2], 512)))


def fixed_sides(sides: Sides, size: tuple[int, int]) -> Sides:
    """Returns (width, height) ``size`` as the sides of every image."""
    return np.broadcast_to(np.array(size[::-1]), sides.shape)
