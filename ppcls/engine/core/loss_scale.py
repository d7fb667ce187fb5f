"""Loss scaling for float16 (Micikevicius et al. 2018), for which the host never waits for the device.

A gradient that is not finite must leave no trace in the weights or in the optimizer. Paddle's GradScaler
has the host ask the device at every update. Here every update is made, and the device takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops, nn

from ppcls.engine.core.flat_buffers import Flat, Undo
from ppcls.engine.core.gradients import Flags, Gradients, any_not_finite, divide
from ppcls.optimizer.state import changed_by_step

GROWTH, DECAY, GROW_EVERY = 2.0, 0.5, 2000  # those of paddle.amp.GradScaler, and its one overflow to shrink


class LossScale:
    """A factor on the loss, adapted so that float16 gradients neither vanish nor overflow.

    It doubles after 2,000 updates in a row with finite gradients, and halves at each one without.

    Args:
        scale: The first factor, at least 1 where it adapts.
        dynamic: Whether it adapts.
        floor: The least factor with which the run goes on, at least 1; `read` tells, nothing stops here.
        waits: Ask the device before each update, and make none instead of taking it back. The numbers are
            the same; it saves a copy of weights and optimizer state, and lets the device idle.
    """

    def __init__(self, scale: float, *, dynamic: bool, floor: float = 1.0, waits: bool = False) -> None:
        self.dynamic, self._floor, self._waits = dynamic, floor, waits
        self._undo: Undo | None = None
        self._model: nn.Layer | None = None
        self._statistics: Undo | None = None
        self._begun = False
        self._flags = Flags()
        self._known = (scale, 0)
        self._set(scale, 0)

    def watch(self, model: nn.Layer) -> None:
        """Has an update that is taken back, or not made, leave no trace in BatchNorm's statistics either.

        What overflows in a forward pass would never leave their running averages. Call `begin` then.
        """
        self._model, self._statistics, self._begun = model, None, False

    def begin(self) -> None:
        """Comes before each forward pass of training; keeps the statistics before an update's first one."""
        if self._model is None or self._begun:
            return
        if self._statistics is None:
            own = self._model.state_dict().values()
            self._statistics = Undo(each for each in own if each.stop_gradient and each.is_floating_point())
        self._statistics.keep()
        self._begun = True

    def scaled(self, loss: Tensor) -> Tensor:
        """Returns the loss times the factor."""
        return loss * self._scale

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def step(self, optimizer: Any) -> None:
        """Divides the gradients by the factor, updates if all are finite, and adapts the factor."""
        found = divide(optimizer, self._scale)
        if self._waits:
            if not bool(found):
                optimizer.step()
            if self._statistics is not None:
                self._statistics.back_if(found)
        else:
            self.undone_if(found, optimizer, optimizer.step)
        self.adapt(found)

    def undone_if(self, found: Tensor, optimizer: Any, update: Callable[[], None]) -> None:
        """Updates, and has the device take it back where ``found``, [1] bool, holds."""
        undo = self._undo_of(optimizer)
        undo.keep()
        update()
        undo.back_if(found)
        if self._statistics is not None:
            self._statistics.back_if(found)

    def storage(self, optimizer: Any) -> Flat:
        """Returns the memory of all that a step changes."""
        return self._undo_of(optimizer).flat

    def _undo_of(self, optimizer: Any) -> Undo:
        if self._undo is None:
            self._undo = Undo(changed_by_step(optimizer))
        return self._undo

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def adapt(self, found: Tensor) -> None:
        """Ends an update: adapts the factor to whether a gradient was not finite, [1] bool."""
        self._begun = False
        if self.dynamic:
            _C_ops.update_loss_scaling_(
                [self._unused], found, self._scale, self._good, self._bad, GROW_EVERY, 1, GROWTH, DECAY, False
            )
        self._flags.add(found)

    def unscale(self, buffers: Sequence[Tensor]) -> Tensor:
        """Divides a few large buffers of gradients by the factor, in place.

        Plain operators: Paddle's own one for many gradients hands the device a list in the host's memory,
        which is gone when a recorded step is replayed.

        Returns:
            [1] bool, whether a gradient is not finite.
        """
        inverse = 1.0 / self._scale
        for buffer in buffers:
            buffer.copy_((buffer.astype("float32") * inverse).astype(buffer.dtype), False)
        return any_not_finite(buffers)

    def read(self) -> Gradients:
        """Returns what became of the updates since the last call; waits where there are any."""
        bad, scales = self._flags.read(), []
        for skipped in bad.tolist():
            if self.dynamic:
                self._known = _after(self._known, skipped=skipped)
            scales.append(self._known[0])
        return Gradients(bad, np.array(scales), self._floor if self.dynamic else 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the factor, and the updates since it changed; waits for the device."""
        return {
            "scale": float(self._scale.item()),
            "incr_count": int(self._good.item()),
            "decr_count": int(self._bad.item()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with a factor that adapts; a fixed one stays what it is."""
        if self.dynamic:
            self._set(float(state["scale"]), int(state["incr_count"]))

    def _set(self, scale: float, good: int) -> None:
        self._scale = paddle.full([1], scale, "float32")
        self._good, self._bad = paddle.full([1], good, "int32"), paddle.zeros([1], "int32")
        self._unused = paddle.zeros([1])  # the operator also clears gradients, of which it wants one at least
        self._known = (scale, good)


def _after(known: tuple[float, int], *, skipped: bool) -> tuple[float, int]:
    """Returns factor and counter after an update, as the device computes them, but with no least factor."""
    scale, good = known
    if skipped:
        return scale * DECAY, 0
    return (scale * GROWTH, 0) if good + 1 == GROW_EVERY else (scale, good + 1)
