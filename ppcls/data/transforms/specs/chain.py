"""Converts a list of transforms into a chain with random numbers and the model's layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ppcls.config.sections.transform import Layout, Transform
from ppcls.data.transforms.specs.basic import ToCHWImage
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide, sides_after


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
    ops, slot, to_chw = list[Op](), 0, Op(ToCHWImage(), 0)
    for position, spec in enumerate(specs):
        if isinstance(spec, ToCHWImage):
            to_chw = replace(to_chw, positions=(position,))
        else:
            ops.append(Op(spec, slot, (position,)))
            slot += spec.draws
    return (*ops, replace(to_chw, slot=slot)) if layout == "CHW" else tuple(ops)


def count_draws(ops: Sequence[Op]) -> int:
    """Returns the number of uniform random numbers per sample that the whole chain needs."""
    return max((op.slot + op.spec.draws for op in ops), default=0)


def decide_chain(ops: Sequence[Op], draws: Draws, sides: Sides) -> Iterator[Decisions]:
    """Yields the decisions of each op in a chain.

    Args:
        ops: The chain, before or after fusion.
        draws: [N, count_draws(ops)] float32, uniform random numbers of the samples in [0, 1).
        sides: [N, 2] int64, heights and widths of the decoded images.
    """
    for op in ops:
        decisions = decide(op.spec, draws[:, op.slot : op.slot + op.spec.draws], sides)
        sides = sides_after(op.spec, sides, decisions)
        yield decisions
