"""Losses for classification: cross-entropy, focal loss and binary cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Decay, NonNegative, Part
from ppcls.config.base.problems import error_at, problem
from ppcls.errors import counted
from ppcls.loss.base import ClassStatistics, Criterion, Labels, LogitsLoss, Loss
from ppcls.loss.class_weights import ClassWeightedLoss, Floats, random_label_problems
from ppcls.outputs import AUXILIARY, LOGITS, get_logits

if TYPE_CHECKING:
    from paddle import Tensor, nn

    from ppcls.outputs import Outputs

_AUXILIARY_WEIGHT = 0.3  # of Szegedy et al. 2014, section 5


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

    @property
    def differs_for_mixed_labels(self) -> bool:
        """True without label smoothing."""
        return not self.epsilon

    @property
    def needs_counts(self) -> bool:
        """Whether the weights or the offsets of the logits are computed from the training data."""
        return super().needs_counts or self.logit_adjustment is not None

    @property
    def corrections(self) -> Sequence[str]:
        """Settings that correct the frequencies of the classes in the training data, as text."""
        adjustment = [f"logit_adjustment ({self.logit_adjustment:g})"] if self.logit_adjustment else []
        return [*super().corrections, *adjustment]

    def logit_offsets(self, data: ClassStatistics) -> Floats | None:
        """Returns offsets for the logits, ``tau * log(frequency)``, [C]; None if logits are not adjusted.

        The frequency of a class without images is computed as if the class had one image.

        Raises:
            ValueError: Logits are adjusted, but ``data`` lacks the number of images per class.
        """
        if self.logit_adjustment is None:
            return None
        if data.counts is None:
            raise ValueError("logit_adjustment needs the number of images per class, got None")
        frequencies = np.maximum(data.counts.positives, 1.0) / data.counts.images
        offsets: Floats = self.logit_adjustment * np.log(frequencies)
        return offsets

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the cross-entropy; see `Loss.build`."""
        from ppcls.loss.functional import classification as functional

        return partial(
            functional.cross_entropy,
            smoothing=self.epsilon or 0.0,
            weights=functional.per_class(self.class_weights(data)),
            offsets=functional.per_class(self.logit_offsets(data)),
        )

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts of the weights and of the logit adjustment with the data set."""
        yield from super().problems(facts, part)
        if part == "Eval" and self.logit_adjustment is not None:
            text = "supported only in training; remove this key from Loss.Eval"
            yield problem(text, "logit_adjustment")
        if self.logit_adjustment:
            yield from random_label_problems(facts, part, "logit_adjustment")


class GoogLeNetLoss(Loss):
    """Loss of GoogLeNet (Szegedy et al. 2014): cross-entropy of the classifier and its auxiliary classifiers.

    The cross-entropy of each auxiliary classifier has the weight 0.3. Evaluation does not use the auxiliary
    classifiers.
    """

    labels: ClassVar[Labels] = "one"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the logits of all classifiers."""
        return (LOGITS, *AUXILIARY)

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the cross-entropy of one classifier; see `Loss.build`."""
        from ppcls.loss.functional.classification import cross_entropy

        return cross_entropy

    def build_term(self, data: ClassStatistics, name: str = "", model: nn.Layer | None = None) -> Criterion:
        """Returns the weighted sum of the losses of all classifiers; see `Loss.build_term`."""
        loss = self.build(data)

        def term(outputs: Outputs, label: Tensor) -> Tensor:
            # In evaluation, the output is a tensor, because the network has no auxiliary classifiers.
            auxiliary = [outputs[name] for name in AUXILIARY] if isinstance(outputs, dict) else []
            losses = [loss(logits, label) for logits in auxiliary]
            return loss(get_logits(outputs), label) + _AUXILIARY_WEIGHT * sum(losses)

        return term

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflict with other architectures."""
        yield from super().problems(facts, part)
        if part == "Train" and facts.architectures != ("GoogLeNet",):
            yield problem("needs auxiliary classifiers; expected Arch.name: GoogLeNet")


class BCELoss(Loss):
    """Mean over classes of the binary cross-entropy of sigmoid probabilities (Wightman et al. 2021)."""

    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target; default: 0."""
    target_threshold: Decay = 0.2
    """Threshold of the smoothed label. A class counts as present if its value is larger. An image that is
    mixed from two images can have two present classes."""

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the binary cross-entropy; see `Loss.build`."""
        from ppcls.loss.functional.classification import thresholded_cross_entropy

        return partial(
            thresholded_cross_entropy, smoothing=self.epsilon or 0.0, threshold=self.target_threshold
        )

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflict of label smoothing with the threshold, which must separate both labels."""
        yield from super().problems(facts, part)
        smoothing = self.epsilon or 0.0
        absent = (
            smoothing / facts.class_num
        )  # smoothed labels of a class that an image has not, and that it has
        present = 1.0 - smoothing + absent
        if not absent <= self.target_threshold < present:
            text = (
                f"with epsilon {smoothing:g} and {counted(facts.class_num, 'class')}, smoothed labels are "
                f"{absent:.3g} and {present:.3g}, which target_threshold must separate; set it between them, "
                "or use a "
                "smaller epsilon"
            )
            yield problem(text, "target_threshold")


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

    @property
    def weights_positives(self) -> bool:
        """Whether the weights apply only to the positives of each class."""
        return self.activation == "sigmoid"

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the focal loss; see `Loss.build`."""
        from ppcls.loss.functional import classification as functional

        formula: Callable[..., Tensor]
        if self.activation == "softmax":
            formula = functional.softmax_focal_loss
        else:
            formula = partial(functional.sigmoid_focal_loss, alpha=self.alpha)
        weights = functional.per_class(self.class_weights(data))
        return partial(formula, gamma=self.gamma, smoothing=self.epsilon or 0.0, weights=weights)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts of the weights and of the activation with the data set."""
        yield from super().problems(facts, part)
        if self.activation == "softmax" and facts.labels.get("Train") == "several":
            text = "expected sigmoid: MultiLabelDataset has several labels per image"
            yield problem(text, "activation")
