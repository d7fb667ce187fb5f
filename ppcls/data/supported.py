"""Whether a backend can do a chain: asked before a run begins, answered with the place in the YAML."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ppcls.config.sections.transform import Transform
from ppcls.data.loaders.dali.settings import DaliSettings
from ppcls.data.sampling.input_size import VariableSize
from ppcls.data.transforms import numpy_ops
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import count_decisions
from ppcls.data.transforms.specs.fuse import Fused
from ppcls.errors import UserError


def base_spec(op: Op) -> Transform:
    """Returns an op's spec, also of one whose size changes on the way."""
    return op.spec.part if isinstance(op.spec, VariableSize) else op.spec


def transforms_of(op: Op) -> list[tuple[int | None, Transform]]:
    """Returns the transforms of an op, each with its position in ``transform_ops``.

    One without a position is what the model's layout adds; it is always last.
    """
    spec = base_spec(op)
    specs = spec.parts if isinstance(spec, Fused) else (spec,)
    return [(position, spec) for position, spec in zip_longest(op.positions, specs) if spec is not None]


def check_numpy(ops: Sequence[Op], chain: str) -> None:
    """Makes sure that ``paddle.io`` can feed by a chain.

    Args:
        ops: The chain.
        chain: Its path in the YAML.

    Raises:
        UserError: A transform has no form in numpy; it is named by its path.
    """
    for op in ops:
        reason = _missing_in_numpy(op.spec)
        if reason is not None:
            raise UserError(
                f"{_place(op, chain)}: paddle.io can't do this: {reason}; "
                "set Global.use_dali=True, or remove this transform"
            )


def check_dali(ops: Sequence[Op], chain: str, settings: DaliSettings) -> None:
    """Makes sure that DALI can feed by a chain, by building its graph, but not the pipeline.

    Args:
        ops: The chain, not fused.
        chain: Its path in the YAML.
        settings: Of DALI, with the device.

    Raises:
        UserError: DALI can't do a transform on this device; it is named by its path.
    """
    from ppcls.data.transforms.dali_ops import UnsupportedError, draft

    fused = settings.fuse(ops)
    try:
        draft(fused, settings.device_id, settings.exec_dynamic)
    except UnsupportedError as error:
        cures = ["remove this transform (docs/data.md says how to give it a DALI form)"]
        if all(_missing_in_numpy(spec) is None for _, spec in transforms_of(error.op)):
            cures.insert(0, "set Global.use_dali=False, and paddle.io feeds")
        if not settings.exec_dynamic and _drafts(fused, settings.device_id):
            split = chain.removesuffix(".dataset.transform_ops")
            cures = [f"set {split}.loader.dali.exec_dynamic=True", *cures]
        where = "a CPU" if settings.device_id is None else "a GPU"
        reason = " ".join(str(error).split())
        raise UserError(
            f"{_place(error.op, chain)}: DALI can't do this on {where}: {reason}; {', or '.join(cures)}"
        ) from None


def _drafts(ops: Sequence[Op], device_id: int | None) -> bool:
    """Whether DALI's dynamic executor takes a chain."""
    from ppcls.data.transforms.dali_ops import UnsupportedError, draft

    try:
        draft(ops, device_id)
    except UnsupportedError:
        return False
    return True


def _missing_in_numpy(spec: Transform) -> str | None:
    try:
        count_decisions(spec)
    except NotImplementedError as error:
        return str(error)
    if numpy_ops.apply.dispatch(type(spec)) is numpy_ops.apply.dispatch(object):
        return f"numpy_ops knows no {spec.kind}"
    return None


def _place(op: Op, chain: str) -> str:
    position, spec = transforms_of(op)[0]
    return f"{chain}.{spec.kind}" if position is None else f"{chain}[{position}].{spec.kind}"
