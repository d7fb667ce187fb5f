"""The sections ``Loss`` and ``SSL``, and losses for one label per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    Decay,
    Fraction,
    Keyed,
    NonNegative,
    Number,
    Part,
    Positive,
    Section,
    Spec,
    error_at,
)
from ppcls.registry import LOSSES

Labels = Literal["one", "several", "any"]  # number of labels that an image may have


class LossSpec(Spec):
    """Base class of losses.

    Attributes:
        labels: Number of labels per image that the loss accepts.
        multi_model: Whether the loss needs several models, as in ``Arch.name: DistillationModel``.
        whole_dataset: Always False; see `ppcls.metric.base.Metric`.
        on_embeddings: Whether the loss compares embeddings. Its labels may then be any numbers.
        has_weights: Whether the loss has trainable layers.
    """

    labels: ClassVar[Labels] = "any"
    multi_model: ClassVar[bool] = False
    whole_dataset: ClassVar[bool] = False
    on_embeddings: ClassVar[bool] = False
    has_weights: ClassVar[bool] = False
    weight: Number = 1.0
    """Factor of this loss in the sum of all losses."""


ClassWeight = tuple[NonNegative, ...] | Literal["balanced", "effective_number"]


class ClassWeightedLoss(LossSpec):
    """Base class of losses that can have one weight per class.

    The sum of weighted losses is divided by the number of images, not by the sum of the weights. The result
    therefore does not depend on the number of processes or the batch size.
    """

    class_weight: ClassWeight | None = None
    """Weights of the classes: a list with one weight per class, or a rule that computes them from the
    training data. `balanced`: inversely proportional to the number of images; `effective_number`: a weaker
    correction by the effective number of images (Cui et al. 2019). The mean of computed weights over the
    training images is 1. Default: no weights."""
    class_weight_beta: Decay = 0.999
    """Parameter beta of `class_weight: effective_number`. With 0, all classes have the same weight; with
    values close to 1, the weights are close to `balanced`."""


class CELoss(ClassWeightedLoss):
    """Mean cross-entropy of softmax probabilities and labels."""

    ignored: ClassVar[Mapping[str, str]] = {"reduction": "the loss is the mean over the batch"}
    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None
    """Label smoothing (Szegedy et al. 2016, section 7): share of the uniform distribution in the target;
    default: 0."""
    logit_adjustment: NonNegative | None = None
    """Logit adjustment for imbalanced classes (Menon et al. 2021): factor tau of the logarithm of the class
    frequencies, which is added to the logits during training. 1 optimizes the balanced accuracy. Default: no
    adjustment."""


class FocalLoss(ClassWeightedLoss):
    """Focal loss (Lin et al. 2017), which gives less weight to images with a confident correct prediction."""

    gamma: NonNegative = 2.0
    """Focusing exponent. With 0, the loss is the cross-entropy."""
    activation: Literal["softmax", "sigmoid"] = "softmax"
    """Activation of the logits: `softmax` for one label per image, `sigmoid` for any number of labels."""
    alpha: Part | None = None
    """Weight of the positives of each class. The weight of its negatives is 1 - alpha. Only for `activation:
    sigmoid`. Default: no weights."""
    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target; default: 0."""

    @model_validator(mode="after")
    def _check_alpha(self) -> Self:
        if self.alpha is not None and self.activation == "softmax":
            text = "only supported with activation: sigmoid; for softmax, set class_weight instead"
            raise error_at(text, "alpha")
        return self


class GoogLeNetLoss(LossSpec):
    """Loss of GoogLeNet (Szegedy et al. 2014): cross-entropy of the classifier and its auxiliary classifiers.

    The cross-entropy of each auxiliary classifier has the weight 0.3. Evaluation does not use the auxiliary
    classifiers.
    """

    labels: ClassVar[Labels] = "one"


class BCELoss(LossSpec):
    """Mean over classes of the binary cross-entropy of sigmoid probabilities (Wightman et al. 2021)."""

    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target; default: 0."""
    target_threshold: Decay = 0.2
    """Threshold of the smoothed label. A class counts as present if its value is larger. An image that is
    mixed from two images can have two present classes."""


class SSL(Section):
    """Semi-supervised training with DataLoader.UnLabelTrain (FixMatch, Sohn et al. 2020).

    The model predicts the classes of weakly augmented unlabelled images. A confident prediction becomes the
    label of the strongly augmented view of the same image.
    """

    ignored: ClassVar[Mapping[str, str]] = {"tempture": "set temperature instead, the right spelling"}
    threshold: Fraction = 0.95
    """Smallest probability, 0 to 1, with which a prediction becomes a label."""
    temperature: Positive = 1.0
    """Divisor of the logits before the softmax that computes the probability."""
    weight: NonNegative = 1.0
    """Factor of the loss of unlabelled images in the total loss."""


class Loss(Section):
    """Losses of training and evaluation. The total loss is the weighted sum of the losses in a list."""

    Train: tuple[Annotated[LossSpec, Keyed(LOSSES)], ...] = Field((CELoss(),), min_length=1)
    """Losses of training; default: CELoss."""
    Eval: tuple[Annotated[LossSpec, Keyed(LOSSES)], ...] = Field((CELoss(),), min_length=1)
    """Losses of evaluation; default: CELoss."""
