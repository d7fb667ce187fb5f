"""From the list of losses in the config to one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatch

from paddle import Tensor

from ppcls.config.fields import Spec
from ppcls.config.objective import CELoss
from ppcls.loss.ce import cross_entropy

Criterion = Callable[[Tensor, Tensor], Tensor]


def build_criterion(losses: tuple[Spec, ...]) -> Criterion:
    """Builds the weighted sum of ``losses``.

    Args:
        losses: One or more specs of losses.

    Returns:
        A function of logits [B, C] of any floating dtype and labels, [B] int64 or [B, C] float32; its result
        is a float32 scalar, the mean over the batch.

    Raises:
        ValueError: ``losses`` is empty.
        TypeError: A spec is not a loss.
    """
    if not losses:
        raise ValueError("expected at least one loss")
    terms = [_term(spec) for spec in losses]

    def criterion(logits: Tensor, label: Tensor) -> Tensor:
        return sum(weight * loss(logits, label) for weight, loss in terms)

    return criterion


@singledispatch
def _term(spec: Spec) -> tuple[float, Criterion]:
    """The weight of a loss, and the loss."""
    raise TypeError(f"{spec.kind} is not a loss")


@_term.register
def _(spec: CELoss) -> tuple[float, Criterion]:
    return spec.weight, partial(cross_entropy, smoothing=spec.epsilon or 0.0)
