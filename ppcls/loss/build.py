"""From the list of losses in the config to one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, singledispatch
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.config.objectives.distillation_losses import (
    DistillationCELoss,
    DistillationDISTLoss,
    DistillationDKDLoss,
    DistillationDMLLoss,
    DistillationGTCELoss,
    DistillationKLDivLoss,
    DistillationMultiLabelLoss,
    DistillationSKDLoss,
    DistillationWSLLoss,
)
from ppcls.config.objectives.embedding import ArcMargin, CircleMargin, CosMargin, MarginHead, TripletLossV2
from ppcls.config.objectives.layer_losses import DistillationDistanceLoss, DistillationRKDLoss
from ppcls.config.objectives.multi_label import MultiLabelAsymmetricLoss, MultiLabelLoss
from ppcls.config.sections.objective import BCELoss, CELoss, LossSpec
from ppcls.loss.ce import cross_entropy
from ppcls.loss.distillation import (
    correlation_distance,
    decoupled_divergence,
    mutual_divergence,
    soft_cross_entropy,
    softened_divergence,
    spherical,
    weighted_soft_labels,
)
from ppcls.loss.embedding import arc_margin, circle_margin, cos_margin, hard_triplets
from ppcls.loss.features import distance, relational
from ppcls.loss.learning import learning_losses
from ppcls.loss.multi_label import (
    asymmetric_loss,
    binary_cross_entropy,
    label_weights,
    thresholded_cross_entropy,
)
from ppcls.outputs import LOGITS, Outputs, get_logits, layer_output_name

Criterion = Callable[[Outputs, Tensor], Tensor]
OfLogits = Callable[[Tensor, Tensor], Tensor]
OfPair = Callable[[Tensor, Tensor, Tensor], Tensor]  # own logits, the other model's, labels


def build_criterion(
    losses: tuple[LossSpec, ...], positives: NDArray[Any] | None = None, margin: MarginHead | None = None
) -> Criterion:
    """Builds the weighted sum of ``losses``.

    Args:
        losses: One or more specs of losses.
        positives: [C], the share of images that are of a class; for losses that weigh by it.
        margin: Of a head whose logits are cosines.

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
    beside = learning_losses(losses)
    terms = [
        (_mean_of(name) if (name := f"loss{position}") in beside else _term(spec, share), spec.weight)
        for position, spec in enumerate(losses)
    ]

    def criterion(outputs: Outputs, label: Tensor) -> Tensor:
        if margin is not None:
            outputs = {**outputs, LOGITS: _harder(margin, outputs[LOGITS], label)}
        return sum(weight * loss(outputs, label) for loss, weight in terms)

    return criterion


def _mean_of(name: str) -> Criterion:
    """The mean of what a loss that has layers of its own gave for each image."""
    return lambda outputs, _: outputs[name].mean()


def _harder(head: MarginHead, cosine: Tensor, label: Tensor) -> Tensor:
    """Returns logits whose cross-entropy asks for more than the label's cosine being the largest."""
    with paddle.amp.auto_cast(enable=False):
        match head:
            case ArcMargin():
                return arc_margin(cosine, label, head.margin, head.scale, head.easy_margin)
            case CosMargin():
                return cos_margin(cosine, label, head.margin, head.scale)
            case CircleMargin():
                return circle_margin(cosine, label, head.margin, head.scale)
    raise TypeError(f"{head.kind} has no margin")


def _of_logits(loss: OfLogits) -> Criterion:
    return lambda outputs, label: loss(get_logits(outputs), label)


@singledispatch
def _term(spec: LossSpec, _positives: Tensor | None) -> Criterion:
    raise TypeError(f"{spec.kind} is not a loss")


@_term.register
def _(spec: CELoss, _positives: Tensor | None) -> Criterion:
    return _of_logits(partial(cross_entropy, smoothing=spec.epsilon or 0.0))


@_term.register
def _(spec: BCELoss, _positives: Tensor | None) -> Criterion:
    return _of_logits(
        partial(thresholded_cross_entropy, smoothing=spec.epsilon or 0.0, threshold=spec.target_threshold)
    )


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


def _of_models(names: Sequence[str], loss: Criterion) -> Criterion:
    """Adds the loss of models up; in evaluation there is the student alone."""

    def criterion(outputs: Outputs, label: Tensor) -> Tensor:
        return sum(loss(outputs[name] if isinstance(outputs, dict) else outputs, label) for name in names)

    return criterion


def _of_pairs(pairs: Sequence[tuple[str, str]], loss: OfPair) -> Criterion:
    return lambda outputs, label: sum(loss(outputs[one], outputs[other], label) for one, other in pairs)


@_term.register(DistillationGTCELoss)
@_term.register(DistillationMultiLabelLoss)
def _(spec: DistillationGTCELoss | DistillationMultiLabelLoss, positives: Tensor | None) -> Criterion:
    return _of_models(spec.model_names, _term(spec.loss, positives))


@_term.register
def _(spec: DistillationCELoss, _positives: Tensor | None) -> Criterion:
    smoothing = spec.epsilon or 0.0
    return _of_pairs(spec.model_name_pairs, lambda own, other, _: soft_cross_entropy(own, other, smoothing))


@_term.register
def _(spec: DistillationKLDivLoss, _positives: Tensor | None) -> Criterion:
    return _of_pairs(
        spec.model_name_pairs, lambda own, other, _: softened_divergence(own, other, spec.temperature)
    )


@_term.register
def _(spec: DistillationDMLLoss, positives: Tensor | None) -> Criterion:
    def loss(own: Tensor, other: Tensor, label: Tensor) -> Tensor:
        weights = label_weights(label, positives) if spec.weight_ratio and positives is not None else None
        return mutual_divergence(own, other, spec.act, weights, spec.sum_across_class_dim)

    return _of_pairs(spec.model_name_pairs, loss)


@_term.register
def _(spec: DistillationDKDLoss, _positives: Tensor | None) -> Criterion:
    def loss(own: Tensor, other: Tensor, label: Tensor) -> Tensor:
        chosen = _chosen(spec, other, label)
        return decoupled_divergence(own, other, chosen, spec.temperature, spec.alpha, spec.beta)

    return _of_pairs(spec.model_name_pairs, loss)


def _chosen(
    spec: DistillationDKDLoss | DistillationWSLLoss | DistillationSKDLoss, other: Tensor, label: Tensor
) -> Tensor:
    """Returns the labels that a loss goes by."""
    return other.detach().argmax(axis=-1) if spec.use_target_as_gt else label


@_term.register
def _(spec: DistillationWSLLoss, _positives: Tensor | None) -> Criterion:
    def loss(own: Tensor, other: Tensor, label: Tensor) -> Tensor:
        return weighted_soft_labels(own, other, _chosen(spec, other, label), spec.temperature)

    return _of_pairs(spec.model_name_pairs, loss)


@_term.register
def _(spec: DistillationSKDLoss, _positives: Tensor | None) -> Criterion:
    def loss(own: Tensor, other: Tensor, label: Tensor) -> Tensor:
        chosen = _chosen(spec, other, label)
        return spherical(own, other, chosen, spec.temperature, spec.multiplier, spec.alpha)

    return _of_pairs(spec.model_name_pairs, loss)


@_term.register
def _(spec: DistillationDISTLoss, _positives: Tensor | None) -> Criterion:
    return _of_pairs(
        spec.model_name_pairs,
        lambda own, other, _: correlation_distance(own, other, spec.beta, spec.gamma),
    )


@_term.register
def _(spec: DistillationDistanceLoss, _positives: Tensor | None) -> Criterion:
    def given(outputs: Outputs, name: str) -> Tensor:
        return outputs[name if spec.layer is None else layer_output_name(name, spec.layer)]

    return lambda outputs, _: sum(
        distance(given(outputs, one), given(outputs, other), spec.mode, spec.act)
        for one, other in spec.model_name_pairs
    )


@_term.register
def _(spec: DistillationRKDLoss, _positives: Tensor | None) -> Criterion:
    keys = list(zip(spec.student_keepkeys, spec.teacher_keepkeys, strict=True))
    return lambda outputs, _: sum(
        relational(
            outputs[layer_output_name(one, own)], outputs[layer_output_name(two, other)], spec.target_size
        )
        for one, two in spec.model_name_pairs
        for own, other in keys
    )


@_term.register
def _(spec: TripletLossV2, _positives: Tensor | None) -> Criterion:
    return lambda outputs, label: hard_triplets(
        outputs[spec.feature_from], label, spec.margin, spec.normalize_feature
    )
