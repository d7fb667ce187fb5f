"""What a sample's random numbers mean for each transform: pure numpy, one answer for every backend.

A backend asks once, for an image or for a whole batch, and carries out what it is told. So decisions can't
differ between backends, and DALI gets them as operator arguments, without a call into Python from its graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.transform import Transform
from ppcls.data.transforms.specs import CropImage, Op, RandCropImage, RandFlipImage, ResizeImage
from ppcls.data.transforms.specs.fuse import Fused


def random_windows(
    spec: RandCropImage, sides: NDArray[np.integer], draws: NDArray[np.floating]
) -> NDArray[np.int32]:
    """Computes the windows of PaddleClas's RandCropImage.

    The aspect ratio is uniform in ``ratio``, the share of the area uniform in ``scale``, both limited
    to what the image can hold; the place is uniform among all that fit.

    Args:
        spec: The transform.
        sides: [N, 2] heights and widths of the images.
        draws: [N, 4] uniform numbers in [0, 1): aspect, area, left, top.

    Returns:
        [N, 4] int32: top, left, height, width; within the image and not empty.
    """
    height, width = sides.astype(np.float64).T
    draw_aspect, draw_area, draw_left, draw_top = draws.astype(np.float64).T
    aspect = spec.ratio[0] + (spec.ratio[1] - spec.ratio[0]) * draw_aspect
    bound = np.minimum(width / height / aspect, height / width * aspect)
    lowest, highest = np.minimum(spec.scale[0], bound), np.minimum(spec.scale[1], bound)
    area = width * height * (lowest + (highest - lowest) * draw_area)
    cut_width = np.clip(np.floor(np.sqrt(area * aspect)), 1, width)
    cut_height = np.clip(np.floor(np.sqrt(area / aspect)), 1, height)
    left = np.floor((width - cut_width + 1) * draw_left)
    top = np.floor((height - cut_height + 1) * draw_top)
    return np.stack([top, left, cut_height, cut_width], axis=1).astype(np.int32)


Sides = NDArray[np.int64]  # [N, 2] heights and widths
Draws = NDArray[np.float32]  # [N, spec.draws] uniform in [0, 1)
Decided = tuple[NDArray[Any], ...]  # each [N, ...]: a row a sample


def decide_chain(ops: Sequence[Op], draws: Draws, sides: Sides) -> Iterator[Decided]:
    """Yields the decisions of each op of a chain.

    Args:
        ops: The chain, fused or not.
        draws: [N, count_draws(ops)] float32, the samples' uniform numbers.
        sides: [N, 2] int64, heights and widths of the decoded images.
    """
    for op in ops:
        decided = decide(op.spec, draws[:, op.slot : op.slot + op.spec.draws], sides)
        sides = sides_after(op.spec, sides, decided)
        yield decided


def count_decisions(spec: Transform) -> int:
    """Returns how many arrays `decide` gives for a spec; the same for all images."""
    return len(decide(spec, np.zeros([1, spec.draws], np.float32), np.full([1, 2], 512)))


@singledispatch
def decide(spec: Transform, draws: Draws, sides: Sides) -> Decided:
    """Decides for a batch what a transform does to each image; nothing where it does the same to all.

    Args:
        spec: The transform.
        draws: [N, spec.draws] float32 in [0, 1).
        sides: [N, 2] int64, heights and widths of the images before it.

    Returns:
        Arrays [N, ...] of what the transform's `apply` and `lower` ask for, of fixed number and dtypes.
    """
    if spec.draws:
        raise NotImplementedError(f"decisions knows no {spec.kind}")
    return ()


@singledispatch
def sides_after(spec: Transform, sides: Sides, decided: Decided) -> Sides:
    """Returns the images' heights and widths after a transform, [N, 2] int64."""
    return sides


def scale_to_short_side(sides: Sides, short: int) -> Sides:
    """Returns sides scaled so that the shorter is ``short``, rounded half up; [N, 2] int64 to the same."""
    shorter = sides.min(axis=-1, keepdims=True)
    scaled: Sides = (2 * sides * short + shorter) // (2 * shorter)
    return scaled


def fixed_sides(sides: Sides, size: tuple[int, int]) -> Sides:
    """Returns (width, height) ``size`` for every image."""
    return np.broadcast_to(np.array(size[::-1]), sides.shape)


@decide.register
def _(spec: RandCropImage, draws: Draws, sides: Sides) -> Decided:
    """Start (top, left) and size (height, width) of the window, [N, 2] int32 each."""
    windows = random_windows(spec, sides, draws)
    return np.ascontiguousarray(windows[:, :2]), np.ascontiguousarray(windows[:, 2:])


@sides_after.register
def _(spec: RandCropImage, sides: Sides, decided: Decided) -> Sides:
    return fixed_sides(sides, spec.size)


@decide.register
def _(spec: RandFlipImage, draws: Draws, sides: Sides) -> Decided:
    """Whether the image is mirrored, [N] int32."""
    return ((draws[:, 0] < 0.5).astype(np.int32),)


@sides_after.register
def _(spec: ResizeImage, sides: Sides, decided: Decided) -> Sides:
    if spec.resize_short is not None:
        return scale_to_short_side(sides, spec.resize_short)
    assert spec.size is not None
    return fixed_sides(sides, spec.size)


@sides_after.register
def _(spec: CropImage, sides: Sides, decided: Decided) -> Sides:
    return fixed_sides(sides, spec.size)


@decide.register
def _(spec: Fused, draws: Draws, sides: Sides) -> Decided:
    """The decisions of its parts, one after the other."""
    decided: Decided = ()
    slot = 0
    for part in spec.parts:
        own = decide(part, draws[:, slot : slot + part.draws], sides)
        sides = sides_after(part, sides, own)
        decided, slot = decided + own, slot + part.draws
    return decided


@sides_after.register
def _(spec: Fused, sides: Sides, decided: Decided) -> Sides:
    waiting = iter(decided)
    for part in spec.parts:
        sides = sides_after(part, sides, tuple(islice(waiting, count_decisions(part))))
    return sides
