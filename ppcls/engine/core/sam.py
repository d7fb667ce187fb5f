"""Sharpness-aware minimization (SAM, Foret et al. 2021, https://arxiv.org/abs/2010.01412).

Each batch has two passes. The first one computes the gradient ``g`` at the weights ``w``, and the second one
computes the gradient at ``w + rho * g / ||g||``, where the loss is higher. The weights then return to ``w``,
and the update uses the second gradient.

Decisions:
- Each rank climbs with the gradient of its own batch, without an exchange (the paper's m-sharpness). In an
  update of several steps, each step climbs with the gradient of its own batch.
- The norm is that of all trained weights together. The loss scale cancels in ``g / ||g||``. Weight decay and
  clipping belong to the update, so they do not change the direction.
- A non-finite gradient moves no weight. The second pass then repeats the first one, and the update handles
  the overflow as without SAM.
- Half-precision weights climb from their master weights, which are rounded afterwards. From the rounded
  weights, steps of less than half of their spacing, which most steps are, would have no effect.
- The weights return to a copy, because ``(w + e) - e`` is not always ``w``.
- Statistics of BatchNorm are those of the first pass, as without SAM. They are restored from a copy, too,
  because the replay of a CUDA graph can't skip their update. So all ways to execute steps agree.
- Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import paddle
from paddle import Tensor, nn

from ppcls.engine.core.gradients import TrialGroup

_EPSILON = 1e-12  # added to the norm, as in the authors' code, so that a gradient of 0 moves no weight


class SharpnessAware:
    """Moves the weights to the place where the second pass computes the gradient, and back.

    Args:
        rho: Length of the move, the radius of the neighborhood in the paper.
        model: Bare model, after all changes of its layers.
        frozen: Names of parameters and buffers that training does not change.
        first_epoch: First epoch with a second pass, from 1.
    """

    def __init__(
        self, rho: float, model: nn.Layer, frozen: Container[str] = (), first_epoch: int = 1
    ) -> None:
        self._rho = rho
        self._first_epoch = first_epoch
        self._statistics = [
            tensor
            for name, tensor in model.state_dict().items()
            if tensor.stop_gradient and tensor.is_floating_point() and name not in frozen
        ]
        self._copies: list[tuple[Tensor, Tensor]] = []

    def begins_by(self, epoch: int) -> bool:
        """Returns whether the batches of an epoch have a second pass.

        Args:
            epoch: Number of the epoch, from 1.
        """
        return epoch >= self._first_epoch

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def climb(self, groups: Sequence[TrialGroup]) -> None:
        """Moves the weights by ``rho`` in the direction of the gradient. Must be followed by `descend`."""
        squares = [group.gradient.astype("float32").square().sum() for group in groups]
        total = paddle.stack([paddle.zeros([]), *squares]).sum()
        finite = paddle.isfinite(total)
        factor = self._rho / (total.sqrt() + _EPSILON)
        changed = [*(group.weight for group in groups), *self._statistics]
        self._copies = [(tensor, tensor.clone()) for tensor in changed]
        for group in groups:
            there = group.exact + group.gradient.astype("float32") * factor
            # A factor of 0 would not do: infinity times 0 is NaN.
            there = paddle.where(finite.expand(there.shape), there, group.exact)
            group.weight.copy_(there.astype(group.weight.dtype), False)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def descend(self) -> None:
        """Restores the weights before `climb`, and the statistics of BatchNorm."""
        for tensor, copy in self._copies:
            tensor.copy_(copy, False)
        self._copies = []
