"""LARS (You et al. 2017, https://arxiv.org/abs/1708.03888, algorithm 1).

Paddle 2.6.2 has one, too, but on half-precision parameters it reads a master weight that it is not given,
which ends the process.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from ppcls.optimizer.own_formula import OwnFormula


class LARS(OwnFormula):
    """Momentum whose rate goes by each tensor's norm over that of its gradient.

    Args:
        momentum: Decay of the velocity.
        trust: ``eta`` of the paper.
        epsilon: Added to the norms.
        common: Those of `OwnFormula`.
    """

    kinds = ("velocity",)

    def __init__(self, momentum: float, trust: float, epsilon: float, **common: Any) -> None:
        super().__init__(**common)
        self._momentum, self._trust, self._epsilon = momentum, trust, epsilon

    def change(
        self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *remembered: Tensor
    ) -> None:
        """``v = momentum * v + own * (g + decay * p)``, ``p -= v``, with the tensor's own rate.

        That is ``rate * trust * |p| / (|g| + decay * |p| + epsilon)``, or ``rate`` without decay.
        """
        (velocity,) = remembered
        if decay:
            p, g = weight.square().sum().sqrt(), gradient.square().sum().sqrt()
            ratio = self._trust * p / (g + decay * p + self._epsilon)
            rate = rate * paddle.where((p > 0) & (g > 0), ratio, paddle.ones_like(ratio))
            gradient = gradient + decay * weight
        velocity.scale_(self._momentum).add_(gradient * rate)
        weight.subtract_(velocity)
