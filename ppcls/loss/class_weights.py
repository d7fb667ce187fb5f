"""The base class of losses with one weight per class, and the weights that the training data determine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Decay, NonNegative
from ppcls.config.base.problems import problem
from ppcls.errors import counted
from ppcls.loss.base import ClassCounts, ClassStatistics, Loss

ClassWeight = tuple[NonNegative, ...] | Literal["balanced", "effective_number"]
Floats = NDArray[np.float64]


class ClassWeightedLoss(Loss, abstract=True):
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

    @property
    def weights_positives(self) -> bool:
        """Whether the weights apply only to the positives of each class, as in losses of the sigmoid."""
        return False

    @property
    def needs_counts(self) -> bool:
        """Whether the weights are computed from the training data."""
        return isinstance(self.class_weight, str)

    def class_weights(self, data: ClassStatistics) -> Floats | None:
        """Returns the weight of each class, [C]; None if the loss has no class weights.

        Raises:
            ValueError: The weights depend on the number of images per class, which ``data`` lacks.
        """
        if self.class_weight is None:
            return None
        if not isinstance(self.class_weight, str):
            return np.array(self.class_weight, np.float64)
        if data.counts is None:
            raise ValueError(
                f"class_weight: {self.class_weight} needs the number of images per class, got None"
            )
        beta = self.class_weight_beta if self.class_weight == "effective_number" else None
        if self.weights_positives:
            return _weights_of_positives(data.counts, beta)
        return _weights_of_classes(data.counts.positives, beta)

    @property
    def corrections(self) -> Sequence[str]:
        """Settings that correct the frequencies of the classes in the training data, as text."""
        return [f"class_weight ({self.class_weight})"] if isinstance(self.class_weight, str) else []

    @property
    def weightings(self) -> tuple[str, ...]:
        """Settings that give classes different weights, or adjust logits to their frequencies, as text."""
        listed = ["class_weight"] if isinstance(self.class_weight, tuple) else []
        return (*listed, *self.corrections)

    def warnings(self, facts: RunFacts, part: str) -> Iterator[str]:
        """Yields a correction of the frequencies that is made more than once."""
        yield from super().warnings(facts, part)
        yield from rebalance_warnings(facts, part, self.corrections)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts of the weights with the number of classes and with the data set."""
        yield from super().problems(facts, part)
        weights = self.class_weight
        if isinstance(weights, tuple) and len(weights) != facts.class_num:
            text = (
                f"expected one weight for each of the {counted(facts.class_num, 'class')}, got {len(weights)}"
            )
            yield problem(text, "class_weight")
        if isinstance(weights, str) and part == "Eval":
            text = f"{weights} needs the training data; in evaluation use a list, or remove this key"
            yield problem(text, "class_weight")
        if isinstance(weights, str):
            yield from random_label_problems(facts, part, "class_weight")


def rebalance_warnings(facts: RunFacts, part: str, settings: Sequence[str]) -> Iterator[str]:
    """Yields a warning if rare classes are corrected twice, which makes them too frequent in predictions.

    Args:
        facts: What the rule may know about the run.
        part: ``Train`` or ``Eval``.
        settings: Settings of the loss that use the frequencies of the data set, as text.
    """
    sampler = f"DataLoader.Train.sampler ({facts.rebalanced_by})"
    causes = [*settings, *([sampler] if facts.rebalanced_by else [])]
    if part == "Train" and settings and len(causes) > 1:
        yield (
            f"{' and '.join(causes)} each correct the frequencies of the classes, so together they "
            "correct too much, and rare classes are predicted too often; use one of them"
        )


def random_label_problems(facts: RunFacts, part: str, key: str) -> Iterator[InitErrorDetails]:
    """Yields the conflict of a key that needs the frequencies of labels with random labels.

    Args:
        facts: What the rule may know about the run.
        part: ``Train`` or ``Eval``.
        key: Key of the loss.
    """
    if part == "Train" and part in facts.random_labels:
        text = (
            "needs the frequencies of labels, but a random transform determines the labels; remove this key"
        )
        yield problem(text, key)


def count_classes(losses: Sequence[Loss], labels: NDArray[Any], classes: int) -> ClassCounts | None:
    """Counts the training images of each class.

    Args:
        losses: Losses of the config.
        labels: Labels of all training images, [N] int64 or [N, C] float32.
        classes: Number of classes.

    Returns:
        None if no loss needs the numbers.
    """
    if not any(loss.needs_counts for loss in losses):
        return None
    several = labels.ndim == 2
    positives = labels.sum(axis=0, dtype=np.float64) if several else np.bincount(labels, minlength=classes)
    return ClassCounts(positives.astype(np.float64), len(labels))


def _weights_of_classes(positives: Floats, beta: float | None) -> Floats:
    """Returns weights inverse to the effective numbers of images, [C], with the mean 1 over images."""
    occurs = positives > 0
    weights = np.ones(len(positives))  # 1 for classes without images, which would otherwise be infinite
    weights[occurs] = 1.0 / _effective(positives, beta)[occurs]
    weights[occurs] *= positives.sum() / (weights * positives).sum()
    return weights


def _weights_of_positives(counts: ClassCounts, beta: float | None) -> Floats:
    """Returns the quotient of the effective numbers of negatives and positives of each class, [C]."""
    occurs = counts.positives > 0
    weights = np.ones(len(counts.positives))
    negatives = _effective(counts.images - counts.positives, beta)
    weights[occurs] = negatives[occurs] / _effective(counts.positives, beta)[occurs]
    return weights


def _effective(numbers: Floats, beta: float | None) -> Floats:
    """Returns the effective numbers ``(1 - beta^n) / (1 - beta)`` of images; ``n`` if ``beta`` is None."""
    return numbers if beta is None else (1.0 - beta**numbers) / (1.0 - beta)
