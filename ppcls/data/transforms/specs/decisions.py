"""Converts the random numbers of samples into decisions about their images, for all backends.

Each random spec registers an implementation of `decide`. Each spec that changes the size of images registers
an implementation of `sides_after`. Backends only execute the decisions, so their results agree. DALI receives
the decisions as operator arguments, without calling Python from its graph.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.base import MAX_PIXELS, CustomTransform, Transform
from ppcls.errors import DecodeError

Sides = NDArray[np.int64]  # [N, 2] heights and widths
Draws = NDArray[np.float32]  # [N, spec.draws] uniform in [0, 1)
Decisions = tuple[NDArray[Any], ...]  # each [N, ...]: one row per sample


@singledispatch
def decide(spec: Transform, draws: Draws, sides: Sides) -> Decisions:
    """Decides what a transform does to each image of a batch.

    Args:
        spec: The transform.
        draws: [N, spec.draws] float32, uniform random numbers in [0, 1).
        sides: [N, 2] int64, heights and widths of the images before the transform.

    Returns:
        Arrays [N, ...] that `apply` and `lower` need for the transform. Their number and dtypes do not depend
        on the images. Empty if the transform has the same effect on all images.
    """
    if spec.draws:
        raise NotImplementedError(f"decide has no implementation for {spec.kind}")
    return ()


@decide.register
def decide_custom(spec: CustomTransform, draws: Draws, sides: Sides) -> Decisions:
    """Returns the random numbers unchanged, [N, spec.draws]."""
    return (draws,) if spec.draws else ()


@singledispatch
def sides_after(spec: Transform, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of the images after a transform, [N, 2] int64."""
    return sides


@singledispatch
def check_sides(spec: Transform, sides: Sides) -> None:
    """Checks the heights and widths of the images that a transform receives, [N, 2] int64.

    A decoder receives those of the decoded images.

    Raises:
        DecodeError: The transform does not accept an image of this size.
    """


def checked_sides_after(spec: Transform, sides: Sides, decisions: Decisions) -> Sides:
    """Returns the heights and widths of the images after a transform, [N, 2] int64.

    Backends call this before they transform an image. A file of 93 bytes with 4000x1 pixels would become an
    image of 262 million pixels if its shorter side were resized to 256.

    Raises:
        DecodeError: The transform does not accept an image of this size, or would enlarge it to more than
            ``MAX_PIXELS`` pixels.
    """
    check_sides(spec, sides)
    after = sides_after(spec, sides, decisions)
    pixels = after.prod(axis=1)
    for row in np.flatnonzero((pixels > MAX_PIXELS) & (pixels > sides.prod(axis=1)))[:1].tolist():
        height, width = sides[row].tolist()
        tall, wide = after[row].tolist()
        raise DecodeError(
            f"{spec.kind} would enlarge the image of {width}x{height} pixels to {wide}x{tall} pixels, "
            f"expected at most {MAX_PIXELS:,} pixels; crop the image"
        )
    return after


@singledispatch
def drawn_labels(spec: Transform, decisions: Decisions) -> NDArray[np.int64]:
    """Returns the label of each image that a transform with a `label_key` determines, [N] int64."""
    raise NotImplementedError(f"drawn_labels has no implementation for {spec.kind}")


def count_decisions(spec: Transform) -> int:
    """Returns the number of arrays that `decide` returns for a spec. It does not depend on the images."""
    return len(decide(spec, np.zeros([1, spec.draws], np.float32), np.full([1, 2], 512)))


def fixed_sides(sides: Sides, size: tuple[int, int]) -> Sides:
    """Returns ``size`` (width, height) as height and width of every image, in the shape of ``sides``."""
    return np.broadcast_to(np.array(size[::-1]), sides.shape)
