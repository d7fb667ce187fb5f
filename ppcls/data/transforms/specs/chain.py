"""A chain of transforms: each at its place, with random numbers of its own, in the model's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ppcls.config.sections.transform import Layout, Transform
from ppcls.data.transforms.specs.basic import ToCHWImage


@dataclass(frozen=True)
class Op:
    """A spec at its place in a chain.

    Attributes:
        spec: The transform.
        slot: Column of its first random number among the sample's uniform numbers.
        positions: Which items of ``transform_ops`` it stands for, from 0; none for what the layout adds.
    """

    spec: Transform
    slot: int
    positions: tuple[int, ...] = field(default=(), compare=False)


def plan_chain(specs: Sequence[Transform], layout: Layout) -> tuple[Op, ...]:
    """Gives each random transform its slots, and ends the chain in ``layout``.

    The layout belongs to the model: a trailing ToCHWImage is dropped where the model wants HWC and
    added where it wants CHW. So PaddleClas's chains, with or without it, serve both.
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
