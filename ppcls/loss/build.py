"""Builds a function that computes the weighted sum of a config's losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.config.custom import CustomLoss
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
    LogitPairLoss,
)
from ppcls.config.objectives.embedding import (
    CenterLoss,
    DCHLoss,
    DSHSDLoss,
    LCDSHLoss,
    PairwiseCosface,
    SupConLoss,
    TripletLossV2,
)
from ppcls.config.objectives.layer_losses import DistillationDistanceLoss, DistillationRKDLoss
from ppcls.config.objectives.multi_label import MultiLabelAsymmetricLoss, MultiLabelLoss
from ppcls.config.objectives.rec_model import (
    ArcMargin,
    CircleMargin,
    CosMargin,
    MarginHead,
)
from ppcls.config.sections.objective import BCELoss, CELoss, FocalLoss, GoogLeNetLoss, LossSpec
from ppcls.loss import classification, distillation, embedding, features, hashing
from ppcls.loss.class_weights import ClassCounts, class_weights, logit_offsets
from ppcls.loss.learned import learned_losses
from ppcls.outputs import AUXILIARY, LOGITS, Outputs, get_logits, layer_output_name

Criterion = Callable[[Outputs, Tensor], Tensor]
# The arguments are the student's logits, the other model's logits, and labels.
PairLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
_AUXILIARY_WEIGHT = 0.3


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Statistics of the classes in the training set, for losses that use them.

    Attributes:
        share: Share of images that have each class, [C] float32; None if unknown.
        counts: Number of training images per class; None if unknown.
    """

    share: Tensor | None = None
    counts: ClassCounts | None = None


def _tensor(values: NDArray[Any] | None) -> Tensor | None:
    return None if values is None else paddle.to_tensor(values, dtype="float32")


def build_criterion(
    losses: tuple[LossSpec, ...],
    positives: NDArray[Any] | None = None,
    margins: Mapping[str, MarginHead] | None = None,
    counts: ClassCounts | None = None,
    model: nn.Layer | None = None,
) -> Criterion:
    """Builds a function that computes the weighted sum of ``losses``.

    Args:
        losses: One or more losses.
        positives: Share of images that have each class, [C], for losses whose weights depend on it.
        margins: Configs of heads with a margin, by the name of the output that contains the head's cosines.
        counts: Number of training images per class, for losses whose weights depend on it.
        model: Model that contains the trainable layers of the losses; see `learned_losses`. None if no loss
            needs it.

    Returns:
        A function of the model's outputs and of labels. Outputs have any floating dtype; an example is
        logits, [B, C]. Labels are [B] int64 or [B, C] float32. The result is a float32 scalar, the mean over
        the batch.

    Raises:
        ValueError: ``losses`` is empty, or a loss needs ``counts``, which is None.
        TypeError: An entry is not a loss.
    """
    if not losses:
        raise ValueError("expected at least one loss, got none")
    images = ClassStatistics(_tensor(positives), counts)
    learned = learned_losses(losses)
    terms = [
        (
            _learned(name, spec, model) if (name := f"loss{position}") in learned else _term(spec, images),
            spec.weight,
        )
        for position, spec in enumerate(losses)
    ]

    def criterion(outputs: Outputs, label: Tensor) -> Tensor:
        changed = {
            name: _apply_margin(head, outputs[name], label)
            for name, head in (margins or {}).items()
            if name in outputs
        }
        outputs = {**outputs, **changed} if changed else outputs
        return sum(weight * loss(outputs, label) for loss, weight in terms)

    return criterion


def _learned(name: str, spec: LossSpec, model: nn.Layer | None) -> Criterion:
    """Builds the function of a loss with trainable layers.

    The function calls the layer in ``model`` for `CenterLoss`. For other losses, it returns the mean of the
    model output that contains the cost per image.
    """
    if isinstance(spec, CenterLoss):
        return lambda outputs, label: getattr(model, name)(outputs[spec.feature_from], label)
    return lambda outputs, _: outputs[name].mean()


def _apply_margin(head: MarginHead, cosine: Tensor, label: Tensor) -> Tensor:
    """Converts cosines into logits whose cross-entropy demands a margin for the cosine of the label."""
    with paddle.amp.auto_cast(enable=False):
        match head:
            case ArcMargin():
                return embedding.arc_margin(cosine, label, head.margin, head.scale, head.easy_margin)
            case CosMargin():
                return embedding.cos_margin(cosine, label, head.margin, head.scale)
            case CircleMargin():
                return embedding.circle_margin(cosine, label, head.margin, head.scale)
    raise TypeError(f"{head.kind} has no margin")


def _term(spec: LossSpec, images: ClassStatistics) -> Criterion:
    """Builds the function of one loss, without the weight of the loss."""
    match spec:
        case DistillationGTCELoss() | DistillationMultiLabelLoss():
            return _sum_over_models(spec.model_names, _term(spec.loss, images))
        case DistillationDistanceLoss():
            return _layer_distance(spec)
        case DistillationRKDLoss():
            return _relational(spec)
        case GoogLeNetLoss():
            return _with_auxiliaries
        case TripletLossV2():
            return lambda outputs, label: embedding.hard_triplets(
                outputs[spec.feature_from], label, spec.margin, spec.normalize_feature
            )
        case DCHLoss():
            return lambda outputs, label: hashing.cauchy_hashing(
                outputs["features"], label, spec.gamma, spec.quantization
            )
        case LCDSHLoss():
            return lambda outputs, label: hashing.locality_constrained(
                outputs["features"], label, spec.quantization
            )
        case DSHSDLoss():
            return lambda outputs, label: hashing.stable_distribution(
                outputs["features"], outputs[LOGITS], label, spec.alpha
            )
        case PairwiseCosface():
            return lambda outputs, label: embedding.pairwise_cosines(
                outputs["features"], label, spec.margin, spec.gamma
            )
        case SupConLoss():
            factor = spec.temperature / spec.base_temperature
            return lambda outputs, label: (
                factor * embedding.supervised_contrast(outputs[spec.feature_from], label, spec.temperature)
            )
    if isinstance(spec, LogitPairLoss):
        pairs = spec.model_name_pairs
        pair_loss = _pair_loss(spec, images.share)
        return lambda outputs, label: sum(
            pair_loss(outputs[one], outputs[other], label) for one, other in pairs
        )
    loss = _logits_loss(spec, images)
    return lambda outputs, label: loss(get_logits(outputs), label)


def _logits_loss(spec: LossSpec, images: ClassStatistics) -> Callable[[Tensor, Tensor], Tensor]:
    """Builds a loss that is a function of logits and labels."""
    match spec:
        case CustomLoss():
            return spec.build()
        case CELoss():
            return partial(
                classification.cross_entropy,
                smoothing=spec.epsilon or 0.0,
                weights=_tensor(class_weights(spec, images.counts)),
                offsets=_tensor(logit_offsets(spec, images.counts)),
            )
        case FocalLoss():
            focal: partial[Tensor] = (
                partial(classification.softmax_focal_loss)
                if spec.activation == "softmax"
                else partial(classification.sigmoid_focal_loss, alpha=spec.alpha)
            )
            weights = _tensor(class_weights(spec, images.counts))
            return partial(focal, gamma=spec.gamma, smoothing=spec.epsilon or 0.0, weights=weights)
        case BCELoss():
            return partial(
                classification.thresholded_cross_entropy,
                smoothing=spec.epsilon or 0.0,
                threshold=spec.target_threshold,
            )
        case MultiLabelLoss():
            return partial(
                classification.binary_cross_entropy,
                smoothing=spec.epsilon or 0.0,
                size_sum=spec.size_sum,
                positives=images.share if spec.weight_ratio else None,
                weights=_tensor(class_weights(spec, images.counts)),
            )
        case MultiLabelAsymmetricLoss():
            return partial(
                classification.asymmetric_loss,
                focus=classification.AsymmetricFocus(
                    spec.gamma_pos, spec.gamma_neg, spec.clip or 0.0, spec.disable_focal_loss_grad
                ),
                epsilon=spec.epsilon,
                mean=spec.reduction == "mean",
            )
    raise TypeError(f"{spec.kind} is not a loss")


def _with_auxiliaries(outputs: Outputs, label: Tensor) -> Tensor:
    """Returns the cross-entropy of GoogLeNet's classifiers."""
    others = [outputs[name] for name in AUXILIARY] if isinstance(outputs, dict) else []
    losses = [classification.cross_entropy(logits, label) for logits in others]
    return classification.cross_entropy(get_logits(outputs), label) + _AUXILIARY_WEIGHT * sum(losses)


def _pair_loss(spec: LogitPairLoss, positives: Tensor | None) -> PairLoss:
    """Builds a loss that is a function of the logits of two models and of labels."""
    match spec:
        case DistillationCELoss():
            smoothing = spec.epsilon or 0.0
            return lambda student, other, _: distillation.soft_cross_entropy(student, other, smoothing)
        case DistillationKLDivLoss():
            return lambda student, other, _: distillation.softened_divergence(
                student, other, spec.temperature
            )
        case DistillationDMLLoss():
            share = positives if spec.weight_ratio else None
            return lambda student, other, label: distillation.mutual_divergence(
                student,
                other,
                spec.act,
                None if share is None else classification.label_weights(label, share),
                spec.sum_across_class_dim,
            )
        case DistillationDKDLoss():
            return lambda student, other, label: distillation.decoupled_divergence(
                student, other, _target(spec, other, label), spec.temperature, spec.alpha, spec.beta
            )
        case DistillationWSLLoss():
            return lambda student, other, label: distillation.weighted_soft_labels(
                student, other, _target(spec, other, label), spec.temperature
            )
        case DistillationSKDLoss():
            return lambda student, other, label: distillation.spherical(
                student, other, _target(spec, other, label), spec.temperature, spec.multiplier, spec.alpha
            )
        case DistillationDISTLoss():
            return lambda student, other, _: distillation.correlation_distance(
                student, other, spec.beta, spec.gamma
            )
    raise TypeError(f"{spec.kind} is not a loss")


def _target(
    spec: DistillationDKDLoss | DistillationWSLLoss | DistillationSKDLoss, other: Tensor, label: Tensor
) -> Tensor:
    """Returns the labels for a distillation loss: the teacher's predictions or the labels of the dataset."""
    return other.detach().argmax(axis=-1) if spec.use_target_as_gt else label


def _sum_over_models(names: Sequence[str], loss: Criterion) -> Criterion:
    """Returns a function that sums a loss over models. In evaluation, the student is the only model."""

    def criterion(outputs: Outputs, label: Tensor) -> Tensor:
        logits = (
            outputs[name] if isinstance(outputs, dict) and name in outputs else get_logits(outputs)
            for name in names
        )
        return sum(loss(output, label) for output in logits)

    return criterion


def _layer_distance(spec: DistillationDistanceLoss) -> Criterion:
    def output(outputs: Outputs, name: str) -> Tensor:
        return outputs[name if spec.layer is None else layer_output_name(name, spec.layer)]

    return lambda outputs, _: sum(
        features.distance(output(outputs, one), output(outputs, other), spec.mode, spec.act)
        for one, other in spec.model_name_pairs
    )


def _relational(spec: DistillationRKDLoss) -> Criterion:
    keys = list(zip(spec.student_keepkeys, spec.teacher_keepkeys, strict=True))
    return lambda outputs, _: sum(
        features.relational(
            outputs[layer_output_name(one, student_layer)],
            outputs[layer_output_name(two, teacher_layer)],
            spec.target_size,
        )
        for one, two in spec.model_name_pairs
        for student_layer, teacher_layer in keys
    )
