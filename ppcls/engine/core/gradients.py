"""Gradients between the backward pass and the update, and the check that they are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, _C_ops
from paddle.base import core
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

from ppcls.engine.core.flat_buffers import ALIGNMENT

_MOST_FLAGS = 1024  # flags that are concatenated into one tensor


class GradientStore(Protocol):
    """Holds the gradients of an update while its steps add to them.

    Attributes:
        loss_factor: Factor on each loss, so that `all_reduce` leaves the mean over the ranks.
    """

    loss_factor: float

    def collect(self) -> None:
        """Adds the gradients that the last backward pass left in the parameters."""

    def all_reduce(self) -> None:
        """Averages the gradients over the ranks."""

    def unscale(self, scale: Tensor) -> Tensor:
        """Divides the gradients by ``scale``, [1] float32; returns whether one is non-finite, [1] bool."""

    def any_nonfinite(self) -> Tensor:
        """Returns whether a gradient is non-finite, [1] bool."""

    def apply(self) -> None:
        """Updates the weights by the gradients."""

    def clear(self) -> None:
        """Discards the gradients after an update."""


class ParameterGradients:
    """The gradients where Paddle leaves them: in ``parameter.grad``."""

    loss_factor = 1.0

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def collect(self) -> None:
        """Does nothing: Paddle's backward pass adds to ``parameter.grad`` itself."""

    def all_reduce(self) -> None:
        """Averages the gradients over the ranks."""
        fused_allreduce_gradients(list(self._optimizer._parameter_list), None)

    def unscale(self, scale: Tensor) -> Tensor:
        """Divides the gradients by ``scale``, in place; if one is non-finite, their values are undefined."""
        groups = core.eager.get_grads_lists(self._optimizer._parameter_list)  # type: ignore[no-untyped-call]
        flags = [_C_ops.check_finite_and_unscale_(gradients, scale)[1] for gradients in groups if gradients]
        if not flags:
            return paddle.zeros([1], "bool")
        return flags[0] if len(flags) == 1 else paddle.concat(flags).any(keepdim=True)

    def any_nonfinite(self) -> Tensor:
        """Returns whether a gradient is non-finite, [1] bool.

        On a CPU this only reads the gradients: it sums them, and looks closer if the sum is non-finite. On a
        GPU the sums would take more kernels, and the host would wait for the result.
        """
        groups = core.eager.get_grads_lists(self._optimizer._parameter_list)  # type: ignore[no-untyped-call]
        gradients = [gradient for group in groups for gradient in group]
        if gradients and gradients[0].place.is_cpu_place():
            sums = [gradient.sum().astype("float32") for gradient in gradients]
            if math.isfinite(float(paddle.stack(sums).sum())):
                return paddle.zeros([1], "bool")
        return self.unscale(paddle.ones([1]))

    def apply(self) -> None:
        """Updates the weights by Paddle's ``optimizer.step``."""
        self._optimizer.step()

    def clear(self) -> None:
        """Discards the gradients."""
        self._optimizer.clear_grad(set_to_zero=False)


def any_nonfinite(buffers: Sequence[Tensor]) -> Tensor:
    """Returns whether a few large buffers contain a non-finite number, [1] bool, by plain operators.

    It multiplies them by a matrix of zeros: infinity times 0 is NaN. Paddle's own sum of as many numbers
    takes a GPU longer.

    Args:
        buffers: Buffers of a multiple of ``ALIGNMENT`` elements each.
    """
    trace = paddle.zeros([1])
    for buffer in buffers:
        zeros = paddle.zeros([ALIGNMENT, 1], buffer.dtype)
        trace = trace + paddle.matmul(buffer.reshape([-1, ALIGNMENT]), zeros).sum().astype("float32")
    return trace != trace


@dataclass(frozen=True)
class UpdateOutcomes:
    """What the host reads about a series of updates.

    Attributes:
        nonfinite: [updates] bool, whether a gradient was non-finite.
        loss_scales: [updates] float64, the loss scale after each update, without a lower bound; None without
            loss scaling.
        min_loss_scale: Smallest loss scale with which training continues.
    """

    nonfinite: NDArray[np.bool_]
    loss_scales: NDArray[np.float64] | None = None
    min_loss_scale: float = 0.0


class NonFiniteFlags:
    """One flag per update, kept on the device until the host reads many at once."""

    def __init__(self) -> None:
        self._flags: list[Tensor] = []

    def append(self, flag: Tensor) -> None:
        """Adds the next update's flag, [1] bool."""
        self._flags.append(flag)
        if len(self._flags) == _MOST_FLAGS:
            self._flags = [paddle.concat(self._flags)]

    def read(self) -> NDArray[np.bool_]:
        """Returns the flags since the last call; waits for the device if there are any."""
        flags = paddle.concat(self._flags).numpy() if self._flags else np.zeros(0, np.bool_)
        self._flags = []
        return np.asarray(flags, np.bool_)
