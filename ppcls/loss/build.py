"""From the list of losses in the config to one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, singledispatch
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.config.multi_label import MultiLabelAsymmetricLoss, MultiLabelLoss
from ppcls.config.objective import CELoss, LossSpec
from ppcls.loss.ce import cross_entropy
from ppcls.loss.multi_label import asymmetric_loss, binary_cross_entropy
from ppcls.outputs import Outputs, logits_of

Criterion = Callable[[Outputs, Tensor], Tensor]
OfLogits = Callable[[Tensor, Tensor], Tensor]


def build_criterion(losses: tuple[LossSpec, ...], positives: NDArray[Any] | None = None) -> Criterion:
    """Builds the weighted sum of ``losses``.

    Args:
        losses: One or more specs of losses.
        positives: [C], the share of images that are of a class; for losses that weigh by it.

    Returns:
        A function of what the model gives, of any floating dtype, such as logits [B, C], and of labels, [B]
        int64 or [B, C] float32; its result is a float32 scalar, the mean over the batch.

    Raises:
        ValueError: ``losses`` is empty.
        TypeError: A spec is not a loss.
    """
    if not losses:
        raise ValueError("expected at least one loss")
    share = paddle.to_tensor(positives, dtype="float32") if positives is not None else None
    terms = [(_term(spec, share), spec.weight) for spec in losses]

    def criterion(outputs: Outputs, label: Tensor) -> Tensor:
        return sum(weight * loss(outputs, label) for loss, weight in terms)

    return criterion


def _of_logits(loss: OfLogits) -> Criterion:
    return lambda outputs, label: loss(logits_of(outputs), label)


@singledispatch
def _term(spec: LossSpec, _positives: Tensor | None) -> Criterion:
    raise TypeError(f"{spec.kind} is not a loss")


@_term.register
def _(spec: CELoss, _positives: Tensor | None) -> Criterion:
    return _of_logits(partial(cross_entropy, smoothing=spec.epsilon or 0.0))


@_term.register
def _(spec: MultiLabelLoss, positives: Tensor | None) -> Criterion:
    return _of_logits(
        partial(
            binary_cross_entropy,
            smoothing=spec.epsilon or 0.0,
            size_sum=spec.size_sum,
            positives=positives if spec.weight_ratio else None,
        )
    )


@_term.register
def _(spec: MultiLabelAsymmetricLoss, _positives: Tensor | None) -> Criterion:
    return _of_logits(
        partial(
            asymmetric_loss,
            gamma_pos=spec.gamma_pos,
            gamma_neg=spec.gamma_neg,
            clip=spec.clip or 0.0,
            epsilon=spec.epsilon,
            constant_focus=spec.disable_focal_loss_grad,
            mean=spec.reduction == "mean",
        )
    )
