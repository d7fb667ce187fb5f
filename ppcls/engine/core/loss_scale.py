"""Scales the loss for float16 (Micikevicius et al. 2018), without making the host wait for the device.

A non-finite gradient must not change the weights or the optimizer's state. Paddle's GradScaler makes the host
read a flag from the device at every update. `LossScale` instead saves the values, applies every update, and
lets the device restore the saved values if a gradient was non-finite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops, nn

from ppcls.engine.core.flat_buffers import UpdateSnapshot
from ppcls.engine.core.gradients import GradientStore, NonFiniteFlags, UpdateOutcomes
from ppcls.optimizer.state import changed_by_step

# The defaults of paddle.amp.GradScaler, except that a single overflow shrinks the scale.
GROWTH_FACTOR = 2.0
SHRINK_FACTOR = 0.5
GROWTH_INTERVAL = 2000


class LossScale:
    """A factor on the loss, adapted so that float16 gradients neither vanish nor overflow.

    The factor doubles after 2,000 consecutive updates with finite gradients, and halves after each update
    with a non-finite gradient.

    Args:
        scale: Initial factor, at least 1 if ``dynamic``.
        dynamic: Whether the factor adapts. Otherwise it stays constant.
        minimum: Smallest factor with which training may continue, at least 1. `read` returns it for the
            caller to check.
    """

    def __init__(self, scale: float, *, dynamic: bool, minimum: float = 1.0) -> None:
        self.dynamic = dynamic
        self._minimum = minimum
        self._snapshot: UpdateSnapshot | None = None
        self._model: nn.Layer | None = None
        self._statistics: UpdateSnapshot | None = None
        self._saved_statistics = False
        self._flags = NonFiniteFlags()
        self._host_state = (scale, 0)
        self._set(scale, 0)

    def track_statistics(self, model: nn.Layer) -> None:
        """Makes updates with an overflow also restore the running statistics of BatchNorm.

        An infinity from an overflow in the forward pass would otherwise stay in the statistics forever. After
        this call, `begin_step` must be called before each step.
        """
        self._model = model
        self._statistics = None
        self._saved_statistics = False

    def begin_step(self) -> None:
        """Saves BatchNorm's statistics before the first step of each update."""
        if self._model is None or self._saved_statistics:
            return
        if self._statistics is None:
            tensors = self._model.state_dict().values()
            self._statistics = UpdateSnapshot(
                tensor for tensor in tensors if tensor.stop_gradient and tensor.is_floating_point()
            )
        self._statistics.save()
        self._saved_statistics = True

    def scaled(self, loss: Tensor) -> Tensor:
        """Returns the loss times the factor."""
        return loss * self._scale

    def update(self, optimizer: Any, gradients: GradientStore) -> Tensor:
        """Divides the gradients by the factor, and updates the weights if all gradients are finite.

        Does not wait for the device. `end_update` adapts the factor.

        Returns:
            Whether a gradient is non-finite, [1] bool.
        """
        if gradients.fused:
            overflow = gradients.apply_scaled(self._scale)
        else:
            overflow = gradients.unscale(self._scale)
            snapshot = self.snapshot(optimizer)
            snapshot.save()
            gradients.apply()
            snapshot.restore_if(overflow)
        if self._statistics is not None:
            self._statistics.restore_if(overflow)
        return overflow

    def snapshot(self, optimizer: Any) -> UpdateSnapshot:
        """Returns the snapshot of all tensors that ``optimizer`` changes.

        The first call creates it, which moves the tensors into flat buffers.
        """
        if self._snapshot is None:
            self._snapshot = UpdateSnapshot(changed_by_step(optimizer))
        return self._snapshot

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def end_update(self, overflow: Tensor) -> None:
        """Adapts the factor to ``overflow``, [1] bool, the result of `update`."""
        self._saved_statistics = False
        if self.dynamic:
            counters = (overflow, self._scale, self._good, self._bad)
            rule = (GROWTH_INTERVAL, 1, GROWTH_FACTOR, SHRINK_FACTOR, False)
            # Paddle's `GradScaler` calls this, too, but reads the flag on the host first. The operator is
            # the same in Paddle 2.6.2 and 3.3.1; tests/engine/core/test_loss_scale.py compares it with
            # GradScaler.
            _C_ops.update_loss_scaling_([self._unused], *counters, *rule)
        self._flags.append(overflow)

    def read(self) -> UpdateOutcomes:
        """Returns the outcomes of the updates since the last call; waits for the device if there are any."""
        nonfinite = self._flags.read()
        scales = []
        for overflow in nonfinite.tolist():
            if self.dynamic:
                self._host_state = _next_state(*self._host_state, overflow=overflow)
            scales.append(self._host_state[0])
        return UpdateOutcomes(nonfinite, np.array(scales), self._minimum if self.dynamic else 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the factor and its counters of updates; waits for the device."""
        return {
            "scale": float(self._scale.item()),
            "incr_count": int(self._good.item()),
            "decr_count": int(self._bad.item()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores an adaptive factor. A constant factor keeps the value of the config.

        Raises:
            KeyError, TypeError, ValueError: ``state`` is invalid.
        """
        if not self.dynamic:
            return
        scale = float(state["scale"])
        good = int(state["incr_count"])
        if not 1 <= scale < math.inf or not 0 <= good < GROWTH_INTERVAL:
            raise ValueError(
                f"expected a finite scale >= 1 and incr_count from 0 to {GROWTH_INTERVAL - 1}, got "
                f"{scale} and {good}"
            )
        self._set(scale, good)

    def _set(self, scale: float, good: int) -> None:
        self._scale = paddle.full([1], scale, "float32")
        self._good = paddle.full([1], good, "int32")
        self._bad = paddle.zeros([1], "int32")
        self._unused = paddle.zeros([1])  # Paddle's operator requires at least one gradient to clear
        self._host_state = (scale, good)


def _next_state(scale: float, good: int, *, overflow: bool) -> tuple[float, int]:
    """Returns the factor and the number of finite updates in a row, after an update.

    The device computes the same values, but limits the factor to at least 1.
    """
    if overflow:
        return scale * SHRINK_FACTOR, 0
    return (scale * GROWTH_FACTOR, 0) if good + 1 == GROWTH_INTERVAL else (scale, good + 1)
