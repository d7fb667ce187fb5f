"""A chain of transforms: each with its own random numbers, in the model's layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ppcls.config.sections.transform import Layout, Transform
from ppcls.data.transforms.specs.basic import ToCHWImage
from ppcls.data.transforms.specs.decisions import Decisions, Draws, Sides, decide, sides_after


@dataclass(frozen=True)
class Op:
    """A spec at its position in a chain.

    Attributes:
        spec: The transform.
        slot: Column of its first random number among the sample's uniform numbers.
        positions: Positions in ``transform_ops`` that it implements, from 0; empty if the layout added it.
    """

    spec: Transform
    slot: int
    positions: tuple[int, ...] = field(default=(), compare=False)


def plan_chain(specs: Sequence[Transform], layout: Layout) -> tuple[Op, ...]:
    """Assigns random numbers to each transform and ends the chain in ``layout``.

    The model determines the layout: ToCHWImage is dropped for an HWC model, and moved or added to the end
    for a CHW model. So PaddleClas's chains serve both, with or without ToCHWImage.
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
    """Returns how many uniform numbers one sample needs for the whole chain."""
    return max((op.slot + op.spec.draws for op in ops), default=0)


def decide_chain(ops: Sequence[Op], draws: Draws, sides: Sides) -> Iterator[Decisions]:
    """Yields the decisions of each op of a chain.

    Args:
        ops: The chain, fused or not.
        draws: [N, count_draws(ops)] float32, the samples' uniform numbers.
        sides: [N, 2] int64, heights and widths of the decoded images.
    """
    for op in ops:
        decisions = decide(op.spec, draws[:, op.slot : op.slot + op.spec.draws], sides)
        sides = sides_after(op.spec, sides, decisions)
        yield decisions
