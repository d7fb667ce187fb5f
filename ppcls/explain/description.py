"""A data pipeline in words: what `ppcls.explain.describe` finds out, and table and picture show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ppcls.config.base.fields import Spec
from ppcls.config.sections.transform import Transform
from ppcls.data.supported import base_spec, transforms_of
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import decide, sides_after
from ppcls.data.transforms.specs.fuse import Fused

ENCODED = "[?] uint8"  # a file's bytes


@dataclass(frozen=True)
class Operator:
    """One operator of DALI, or one function of a library.

    Attributes:
        name: ``decoders.image``, ``cv2.resize``.
        device: ``"cpu"``, ``"gpu"`` or ``"mixed"``.
        output: Shape, layout and dtype of what it gives, ``?`` where images differ; may be empty.
    """

    name: str
    device: str
    output: str = ""


@dataclass(frozen=True)
class Stage:
    """What became of one transform, or of several that were fused.

    Attributes:
        transforms: Each with its place in ``transform_ops`` and its parameters.
        operators: That do it.
        decided: What is decided for each image.
        fused: Name of what the transforms were fused to; empty where they were not.
    """

    transforms: tuple[str, ...]
    operators: tuple[Operator, ...]
    decided: str = ""
    fused: str = ""


@dataclass(frozen=True)
class Description:
    """The pipeline of one split.

    Attributes:
        split: ``DataLoader.Train``.
        feeder: ``DALI on GPU 0``.
        facts: What there is to know of the whole, by name.
        stages: In order, reading first.
    """

    split: str
    feeder: str
    facts: dict[str, str]
    stages: tuple[Stage, ...]

    @property
    def fusions(self) -> list[str]:
        """One line for each."""
        return [
            f"{' + '.join(each.split(' ')[1] for each in stage.transforms)} → {stage.fused}: "
            f"{', '.join(operator.name for operator in stage.operators)}"
            for stage in self.stages
            if stage.fused
        ]


def stage_of(op: Op, operators: Sequence[Operator]) -> Stage:
    """Puts into words what ``operators`` do for ``op``."""
    placed, spec = transforms_of(op), base_spec(op)
    return Stage(
        transforms=tuple(f"[{'+' if at is None else at}] {named(each)}" for at, each in placed),
        operators=tuple(operators),
        decided="; ".join(filter(None, (_decided(each) for _, each in placed))),
        fused=spec.kind if isinstance(spec, Fused) else "",
    )


def sizes_vary(ops: Sequence[Op]) -> Iterator[bool]:
    """Yields, for each op, whether images that differ in size still do behind it."""
    sides = np.array([[600, 800], [900, 700]])
    for op in ops:
        decided = decide(op.spec, np.full([2, op.spec.draws], 0.5, np.float32), sides)
        sides = sides_after(op.spec, sides, decided)
        yield bool((sides[0] != sides[1]).any())


def describe_arrays(shapes: Sequence[Sequence[int]], layout: str, dtype: str, vary: bool) -> str:
    """Returns such as ``[?, ?, 3] HWC uint8`` for images that differ in height and width.

    Args:
        shapes: Of one batch.
        layout: Such as HWC.
        dtype: Such as uint8.
        vary: Whether heights and widths differ, although those of this batch may not.
    """
    sides = [str(each[0]) if len(set(each)) == 1 else "?" for each in zip(*shapes, strict=True)]
    if vary:
        sides = ["?" if axis in "HW" else side for side, axis in zip(sides, layout, strict=False)]
    return " ".join(filter(None, [f"[{', '.join(sides)}]", layout, dtype]))


def named(spec: Spec) -> str:
    """Returns a spec's name and what the config sets of it."""
    given = spec.model_dump(exclude_defaults=True).items()
    return " ".join([spec.kind, *(f"{key}={_short(value)}" for key, value in given)])


def _short(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_short, value))})"
    if isinstance(value, dict):
        return f"({', '.join(f'{key}={_short(each)}' for key, each in value.items())})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _decided(spec: Transform) -> str:
    """Returns what `decide` says of itself for such a transform."""
    own = decide.dispatch(type(spec))
    if own is decide.dispatch(object):
        return ""
    text = (own.__doc__ or "").split("\n")[0].rstrip(".").replace("`", "")
    numbers = f" ({spec.draws} random number{'s' if spec.draws > 1 else ''})" if spec.draws else ""
    return f"{text}{numbers}"
