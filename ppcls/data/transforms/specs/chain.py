"""Converts a list of transforms into a chain with random numbers and the model's layout.

Random numbers are assigned before transforms are fused, by the position of each transform in the config. So a
sample gets the same crop and the same flip from DALI, which fuses transforms, and from ``paddle.io``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ppcls.data.transforms.base import ImageState, Layout, Transform
from ppcls.data.transforms.specs.basic import (
    CropImage,
    DecodeImage,
    NormalizeImage,
    ResizeImage,
    ToCHWImage,
)
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, checked_sides_after, decide


@dataclass(frozen=True)
class Op:
    """A transform in a chain.

    Attributes:
        spec: The transform.
        slot: Index of the transform's first random number among all random numbers of a sample.
        positions: Positions in ``transform_ops`` of the transforms that this op runs, from 0. Empty for a
            `ToCHWImage` that was added for the model's layout.
    """

    spec: Transform
    slot: int
    positions: tuple[int, ...] = field(default=(), compare=False)


def plan_chain(specs: Sequence[Transform], layout: Layout) -> tuple[Op, ...]:
    """Assigns random numbers to each transform, and makes the chain return images in ``layout``.

    For an HWC model, ToCHWImage is removed. For a CHW model, it is moved or added to the end. So chains of
    PaddleClas work for both layouts, with and without ToCHWImage.
    """
    ops = list[Op]()
    slot = 0
    to_chw = Op(ToCHWImage(), 0)
    for position, spec in enumerate(specs):
        if isinstance(spec, ToCHWImage):
            to_chw = replace(to_chw, positions=(position,))
        else:
            ops.append(Op(spec, slot, (position,)))
            slot += spec.draws
    return (*ops, replace(to_chw, slot=slot)) if layout == "CHW" else tuple(ops)


class TransformsOfModel(Transform, abstract=True):
    """Stands for transforms that a model runs itself. Checks that they do not enlarge an image too much."""

    specs: tuple[Any, ...]

    def after(self, state: ImageState) -> ImageState:
        """Returns the state unchanged, because the model receives the images before the transforms."""
        return state


@decide.register
def check_transforms_of_model(spec: TransformsOfModel, draws: Draws, sides: Sides) -> Decisions:
    """Returns nothing.

    Raises:
        DecodeError: The model would enlarge an image too much.
    """
    for part in spec.specs:
        sides = checked_sides_after(part, sides, decide(part, draws[:, :0], sides))
    return ()


def split_chain(specs: Sequence[Transform]) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Splits transforms for a model that normalizes 8-bit RGB images.

    Args:
        specs: Transforms of the trained model.

    Returns:
        The transforms that return pixels in RGB order, [H, W, 3] uint8; and the transforms of the model. The
        latter start with the original DecodeImage, which specifies the order of the channels.

    Raises:
        ValueError: The transforms cannot be split in this way.
    """
    decoder = specs[0]
    if not isinstance(decoder, DecodeImage) or (decoder.channels, decoder.dtype) != (3, "uint8"):
        raise ValueError(f"expected images that DecodeImage decodes to 8-bit RGB or BGR, got {decoder.kind}")
    kinds = [type(spec) for spec in specs]
    if NormalizeImage not in kinds:
        raise ValueError("expected NormalizeImage")
    position = kinds.index(NormalizeImage)
    before = specs[1:position]
    after = specs[position + 1 :]
    for spec in after:
        if not isinstance(spec, ToCHWImage):
            raise ValueError(f"{spec.kind} after NormalizeImage is not supported")
    for spec in before:
        if isinstance(spec, ToCHWImage):
            raise ValueError("ToCHWImage before NormalizeImage is not supported")
        if not decoder.to_rgb and not isinstance(spec, (ResizeImage, CropImage)):
            raise ValueError(f"{spec.kind} on BGR images is not supported")
    return (decoder.model_copy(update={"to_rgb": True}), *before), (decoder, *specs[position:])


def count_draws(ops: Sequence[Op]) -> int:
    """Returns the number of uniform random numbers per sample that the whole chain needs."""
    return max((op.slot + op.spec.draws for op in ops), default=0)


def decide_chain(ops: Sequence[Op], draws: Draws, sides: Sides) -> Iterator[Decisions]:
    """Yields the decisions of each op in a chain.

    Args:
        ops: The chain, before or after fusion.
        draws: [N, count_draws(ops)] float32, uniform random numbers of the samples in [0, 1).
        sides: [N, 2] int64, heights and widths of the decoded images.

    Raises:
        DecodeError: A transform would enlarge an image too much.
    """
    for op in ops:
        decisions = decide(op.spec, draws[:, op.slot : op.slot + op.spec.draws], sides)
        sides = checked_sides_after(op.spec, sides, decisions)
        yield decisions
