"""Whether gradients are finite: found out on the device, read by the host later, many updates at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, _C_ops
from paddle.base import core

from ppcls.engine.core.flat_buffers import UNIT

_BLOCK = 1024  # flags that are gathered into one tensor


@dataclass(frozen=True)
class Gradients:
    """What the host is told of some updates, one after the other.

    Attributes:
        bad: [updates] bool, whether a gradient was not finite.
        scales: [updates] float64, the loss scale after each, as without any floor; None where none scales.
        floor: The least scale with which the run goes on.
    """

    bad: NDArray[np.bool_]
    scales: NDArray[np.float64] | None = None
    floor: float = 0.0


class Flags:
    """One flag an update, on the device."""

    def __init__(self) -> None:
        self._flags: list[Tensor] = []

    def add(self, flag: Tensor) -> None:
        """Takes the next update's flag, [1] bool."""
        self._flags.append(flag)
        if len(self._flags) == _BLOCK:
            self._flags = [paddle.concat(self._flags)]

    def read(self) -> NDArray[np.bool_]:
        """Returns the flags since the last call; waits for the device where there are any."""
        flags = paddle.concat(self._flags).numpy() if self._flags else np.zeros(0, np.bool_)
        self._flags = []
        return np.asarray(flags, np.bool_)


def any_not_finite(buffers: Sequence[Tensor]) -> Tensor:
    """Returns whether any number in a few large buffers is not finite, [1] bool, by plain operators.

    By a matrix product with zeros, for infinity times 0 is no number; Paddle's own sum of as many takes a GPU
    longer.

    Args:
        buffers: Of a multiple of `flat.UNIT` elements each.
    """
    trace = paddle.zeros([1])
    for buffer in buffers:
        zeros = paddle.zeros([UNIT, 1], buffer.dtype)
        trace = trace + paddle.matmul(buffer.reshape([-1, UNIT]), zeros).sum().astype("float32")
    return trace != trace


@paddle.no_grad()  # type: ignore[untyped-decorator]
def not_finite(optimizer: Any) -> Tensor:
    """Returns whether one of an optimizer's gradients is not finite, [1] bool.

    A CPU adds them up, which only reads them, and looks closer where the sum is not finite. A GPU would take
    longer to start as many kernels, and the host would wait for it.
    """
    groups = core.eager.get_grads_lists(optimizer._parameter_list)  # type: ignore[no-untyped-call]
    gradients = [each for group in groups for each in group]
    if gradients and gradients[0].place.is_cpu_place():
        sums = [each.sum().astype("float32") for each in gradients]
        if math.isfinite(float(paddle.stack(sums).sum())):
            return paddle.zeros([1], "bool")
    return divide(optimizer, paddle.ones([1]))


@paddle.no_grad()  # type: ignore[untyped-decorator]
def divide(optimizer: Any, scale: Tensor) -> Tensor:
    """Divides an optimizer's gradients in place; they are worth nothing where one is not finite.

    Args:
        optimizer: Whose parameters' gradients.
        scale: [1] float32.

    Returns:
        [1] bool, whether one is not finite.
    """
    groups = core.eager.get_grads_lists(optimizer._parameter_list)  # type: ignore[no-untyped-call]
    flags = [_C_ops.check_finite_and_unscale_(gradients, scale)[1] for gradients in groups if gradients]
    if not flags:
        return paddle.zeros([1], "bool")
    return flags[0] if len(flags) == 1 else paddle.concat(flags).any(keepdim=True)
