"""Momentum's update of many weights by a few operators, where they lie one after another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from paddle import Tensor, _C_ops, optimizer
from paddle.regularizer import L2Decay

from ppcls.optimizer.state import trained, treatment

Window = Callable[[int, int], Tensor]


class FlatMomentum:
    """The update of a `paddle.optimizer.Momentum` that clips nothing; its numbers are those of Paddle's.

    ResNet-50 has 161 weights. A GPU takes longer to begin and end as many kernels than for their work.

    Args:
        made: The optimizer.
        state: Returns the memory from one tensor to another of `ppcls.optimizer.state.changed_by_step`, by
            their places there.
        gradients: Returns that of the gradients, in the order of `ppcls.optimizer.state.trained`.
    """

    def __init__(self, made: optimizer.Momentum, state: Window, gradients: Window) -> None:
        self._made = made
        made._create_global_learning_rate()  # a tensor, for which Paddle waits until the first step
        weights = trained(made)
        halves = [place for place, each in enumerate(weights) if each.name in made._master_weights]
        self._groups: list[tuple[Tensor, tuple[Tensor | None, ...], tuple[Any, ...]]] = []
        for _, group in groupby(range(len(weights)), lambda place: treatment(weights[place])):
            places = list(group)
            first, last, like = places[0], places[-1], weights[places[0]]
            master, velocity = None, len(weights) + len(halves)
            if first in halves:
                masters = len(weights) + halves.index(first)
                master = state(masters, masters + last - first)
            tensors = (
                state(first, last),
                gradients(first, last),
                state(velocity + first, velocity + last),
                master,
            )
            self._groups.append((like, tensors, _decay(made, like)))

    def __call__(self) -> None:
        """Updates the weights."""
        made = self._made
        for like, (weight, gradient, velocity, master), decay in self._groups:
            rate = made._create_param_lr((like, gradient))
            rule = (made._momentum, made._use_nesterov, *decay, master is not None, made._rescale_grad)
            _C_ops.momentum_(weight, gradient, velocity, rate, master, *rule)


def _decay(made: optimizer.Momentum, weight: Tensor) -> tuple[str, float]:
    """Returns how a weight decays, and how much: by its own mark, or else as the optimizer says."""
    if isinstance(weight.regularizer, L2Decay):
        return "l2_decay", weight.regularizer._coeff
    return made._regularization_method, made._regularization_coeff
