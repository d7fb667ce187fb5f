"""Checks before a run that a backend supports all transforms in a chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops.chain import apply
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import count_decisions
from ppcls.errors import UserError

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.loaders.dali.settings import DaliSettings


def transforms_of(op: Op) -> list[tuple[int | None, Transform]]:
    """Returns the transforms that an op combines, each with its position in ``transform_ops``.

    The last transform has the position None if it was added for the model's layout.
    """
    specs = op.spec.parts
    return [(position, spec) for position, spec in zip_longest(op.positions, specs) if spec is not None]


def check_numpy(ops: Sequence[Op], chain: str) -> None:
    """Checks that the loader with ``paddle.io`` supports a chain.

    Args:
        ops: The chain.
        chain: Config key of the chain, for messages.

    Raises:
        UserError: The NumPy backend does not implement a transform.
    """
    for op in ops:
        reason = _missing_in_numpy(op.spec)
        if reason is not None:
            raise UserError(
                f"{_path(op, chain)}: not supported by paddle.io: {reason}; "
                "set Global.use_dali=True, or remove this transform"
            )


def check_dali(ops: Sequence[Op], chain: str, settings: DaliSettings) -> None:
    """Checks that DALI supports a chain. Builds the graph of the chain, but no pipeline.

    Args:
        ops: The chain, before fusion.
        chain: Config key of the chain, for messages.
        settings: Settings of DALI, including the device.

    Raises:
        UserError: DALI does not support a transform on this device.
    """
    from ppcls.data.transforms.dali_ops import UnsupportedError, check_graph

    fused = settings.fuse(ops)
    try:
        check_graph(fused, settings.device_id, settings.exec_dynamic)
    except UnsupportedError as error:
        fixes = ["remove this transform (docs/data.md describes how to implement it for DALI)"]
        if all(_missing_in_numpy(spec) is None for _, spec in transforms_of(error.op)):
            fixes.insert(0, "set Global.use_dali=False to use paddle.io")
        if not settings.exec_dynamic and _dynamic_supports(fused, settings.device_id):
            split = chain.removesuffix(".dataset.transform_ops")
            fixes = [f"set {split}.loader.dali.exec_dynamic=True", *fixes]
        device = "a CPU" if settings.device_id is None else "a GPU"
        reason = " ".join(str(error).split())
        raise UserError(
            f"{_path(error.op, chain)}: not supported by DALI on {device}: {reason}; {', or '.join(fixes)}"
        ) from None


def _dynamic_supports(ops: Sequence[Op], device_id: int | None) -> bool:
    """Returns whether DALI's dynamic executor supports a chain."""
    from ppcls.data.transforms.dali_ops import UnsupportedError, check_graph

    try:
        check_graph(ops, device_id)
    except UnsupportedError:
        return False
    return True


def _missing_in_numpy(spec: Transform) -> str | None:
    try:
        count_decisions(spec)
    except NotImplementedError as error:
        return str(error)
    if apply.dispatch(type(spec)) is apply.dispatch(object):
        return f"the NumPy backend does not implement {spec.kind}"
    return None


def _path(op: Op, chain: str) -> str:
    position, spec = transforms_of(op)[0]
    return f"{chain}.{spec.kind}" if position is None else f"{chain}[{position}].{spec.kind}"
