"""Handles gradients between the backward pass and the update, and checks that they are finite.

Decisions:
- Gradients are checked in every precision, not only with loss scaling: ReLU can hide NaN weights from the
  loss, so a run in float32 would continue until its next checkpoint.
- Overflows stay on the device until the host logs or saves. A host that reads a flag in each update waits for
  the device each time.
- Paddle's operators for many gradients are called directly (``_C_ops``, ``get_grads_lists``), because its
  public `GradScaler` reads its flag in each update. `tests/engine/core/test_gradients.py` notices if they
  change; they are the same in Paddle 2.6.2 and 3.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, _C_ops
from paddle.base import core
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

from ppcls.engine.core.flat_buffers import ALIGNMENT
from ppcls.optimizer.paddle_optimizers import create_state, master_weights_of, parameters_of

_MOST_FLAGS = 1024  # number of flags at which they are concatenated into one tensor


class TrialGroup(NamedTuple):
    """One or more weights, with the gradients that one step computed for them.

    Attributes:
        weight: Weights that the network uses.
        exact: Their float32 master weights; ``weight`` itself without master weights.
        gradient: Gradients of the same shape, times the loss scale.
    """

    weight: Tensor
    exact: Tensor
    gradient: Tensor


class GradientStore(Protocol):
    """Interface of a store of gradients, to which the steps of an update add.

    The gradients of a trial do not become part of the update. SAM needs them (`ppcls.engine.core.sam`).

    Attributes:
        loss_factor: Factor on each loss. It makes the result of `all_reduce` the mean over the ranks.
        fused: Whether the store has `apply_scaled`, which replaces `unscale`, `apply` and `any_nonfinite`.
    """

    loss_factor: float
    fused: bool

    def collect(self) -> None:
        """Adds the gradients that the last backward pass wrote to ``parameter.grad``."""

    def begin_trial(self) -> None:
        """Sets the gradients of earlier steps aside until `end_trial`."""

    def trial_groups(self) -> Sequence[TrialGroup]:
        """Returns the trained weights with their gradients since `begin_trial`."""

    def end_trial(self) -> None:
        """Discards the gradients since `begin_trial`, and restores those that were set aside."""

    def all_reduce(self) -> None:
        """Averages the gradients over the ranks."""

    def unscale(self, scale: Tensor) -> Tensor:
        """Divides the gradients by ``scale``, [1] float32; returns whether any is non-finite, [1] bool."""

    def any_nonfinite(self) -> Tensor:
        """Returns whether a gradient is non-finite, [1] bool."""

    def apply(self) -> None:
        """Updates the weights with the gradients."""

    def apply_scaled(self, scale: Tensor | None) -> Tensor:
        """Updates the weights with the gradients divided by ``scale``, [1] float32.

        With a scale, an update with a non-finite gradient changes nothing.

        Returns:
            Whether a gradient is non-finite, [1] bool.
        """

    def clear(self) -> None:
        """Discards the gradients after an update."""


class ParameterGradients:
    """Gradients in ``parameter.grad``, where Paddle's backward pass writes them."""

    loss_factor = 1.0
    fused = False

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._earlier: list[tuple[Tensor, Tensor]] = []  # parameters with the gradients of earlier steps

    def collect(self) -> None:
        """Does nothing: Paddle's backward pass adds to ``parameter.grad`` itself."""

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def begin_trial(self) -> None:
        """Sets the gradients of earlier steps aside until `end_trial`."""
        # Copies, because `clear` frees the memory of the gradients.
        self._earlier = [
            (parameter, parameter.grad.clone())
            for parameter in parameters_of(self._optimizer)
            if parameter.grad is not None
        ]
        self.clear()

    def trial_groups(self) -> list[TrialGroup]:
        """Returns each trained weight with its gradient since `begin_trial`."""
        create_state(self._optimizer)  # Paddle creates the master weights in the first update
        masters = master_weights_of(self._optimizer)
        return [
            TrialGroup(parameter, masters.get(parameter.name, parameter), parameter.grad)
            for parameter in parameters_of(self._optimizer)
            if parameter.grad is not None
        ]

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def end_trial(self) -> None:
        """Discards the gradients since `begin_trial`, and restores those that were set aside."""
        self.clear()
        for parameter, gradient in self._earlier:
            parameter.grad = gradient
        self._earlier = []

    def all_reduce(self) -> None:
        """Averages the gradients over the ranks."""
        fused_allreduce_gradients(list(parameters_of(self._optimizer)), None)

    def unscale(self, scale: Tensor) -> Tensor:
        """Divides the gradients by ``scale``, [1] float32, in place.

        If a gradient is non-finite, the values of all gradients are undefined afterwards.

        Returns:
            Whether a gradient is non-finite, [1] bool.
        """
        for parameter in parameters_of(self._optimizer):
            # The operator ignores strides, so it would permute the gradient of a weight that is transposed.
            if parameter.grad is not None and not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()
        groups = core.eager.get_grads_lists(parameters_of(self._optimizer))  # type: ignore[no-untyped-call]
        flags = [_C_ops.check_finite_and_unscale_(gradients, scale)[1] for gradients in groups if gradients]
        if not flags:
            return paddle.zeros([1], "bool")
        return flags[0] if len(flags) == 1 else paddle.concat(flags).any(keepdim=True)

    def any_nonfinite(self) -> Tensor:
        """Returns whether a gradient is non-finite, [1] bool.

        On a CPU it sums the gradients, which only reads them, and checks each value only if the sum is
        non-finite. On a GPU the sums would need more kernels, and the host would wait for the result.
        """
        groups = core.eager.get_grads_lists(parameters_of(self._optimizer))  # type: ignore[no-untyped-call]
        gradients = [gradient for group in groups for gradient in group]
        if gradients and gradients[0].place.is_cpu_place():
            sums = [gradient.sum().astype("float32") for gradient in gradients]
            if math.isfinite(float(paddle.stack(sums).sum())):
                return paddle.zeros([1], "bool")
        return self.unscale(paddle.ones([1]))

    def apply(self) -> None:
        """Updates the weights with Paddle's ``optimizer.step``."""
        self._optimizer.step()

    def apply_scaled(self, scale: Tensor | None) -> Tensor:
        """Not supported; see `fused`."""
        raise NotImplementedError

    def clear(self) -> None:
        """Discards the gradients."""
        self._optimizer.clear_grad(set_to_zero=False)


def any_nonfinite(buffers: Sequence[Tensor]) -> Tensor:
    """Returns whether a few large buffers contain a non-finite number, [1] bool.

    Multiplies the buffers by a matrix of zeros: the product with infinity or NaN is NaN. On a GPU this is
    faster than Paddle's sum of all elements.

    Args:
        buffers: Buffers whose numbers of elements are multiples of ``ALIGNMENT``.
    """
    trace = paddle.zeros([1])
    for buffer in buffers:
        zeros = paddle.zeros([ALIGNMENT, 1], buffer.dtype)
        trace = trace + paddle.matmul(buffer.reshape([-1, ALIGNMENT]), zeros).sum().astype("float32")
    return trace != trace


@dataclass(frozen=True)
class UpdateOutcomes:
    """Overflows and loss scales of a series of updates, on the host.

    Attributes:
        nonfinite: [updates] bool, whether a gradient of the update was non-finite.
        loss_scales: [updates] float64, the loss scale after each update, without the lower bound of 1 that
            Paddle applies on the device; None without loss scaling.
        min_loss_scale: Smallest loss scale with which training may continue.
    """

    nonfinite: NDArray[np.bool_]
    loss_scales: NDArray[np.float64] | None = None
    min_loss_scale: float = 0.0


class NonFiniteFlags:
    """One flag per update, stored on the device until the host reads many flags at once."""

    def __init__(self) -> None:
        self._flags: list[Tensor] = []

    def append(self, flag: Tensor) -> None:
        """Adds the next update's flag, [1] bool."""
        self._flags.append(flag)
        if len(self._flags) == _MOST_FLAGS:
            self._flags = [paddle.concat(self._flags)]

    def read(self) -> NDArray[np.bool_]:
        """Returns the flags since the last call, [updates] bool; waits for the device if there are any."""
        flags = paddle.concat(self._flags).numpy() if self._flags else np.zeros(0, np.bool_)
        self._flags = []
        return np.asarray(flags, np.bool_)
