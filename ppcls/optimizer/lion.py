"""Lion (Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2)."""

from __future__ import annotations

from typing import Any

from paddle import Tensor

from ppcls.optimizer.own_formula import OwnFormula


class Lion(OwnFormula):
    """Steps by the sign of an average of gradients.

    Args:
        beta1: Decay of the average that gives the sign.
        beta2: Decay of the average that is remembered.
        common: Those of `OwnFormula`.
    """

    kinds = ("moment",)

    def __init__(self, beta1: float, beta2: float, **common: Any) -> None:
        super().__init__(**common)
        self._beta1, self._beta2 = beta1, beta2

    def change(
        self, weight: Tensor, gradient: Tensor, rate: Tensor, decay: float, *remembered: Tensor
    ) -> None:
        """``p -= rate * (sign(beta1 * m + (1 - beta1) * g) + decay * p)``, and then the average.

        That is ``m = beta2 * m + (1 - beta2) * g``.
        """
        (moment,) = remembered
        step = (self._beta1 * moment + (1.0 - self._beta1) * gradient).sign()
        if decay:
            step = step + decay * weight
        weight.subtract_(step * rate)
        moment.scale_(self._beta2).add_((1.0 - self._beta2) * gradient)
