"""The section ``SSL``: training on labelled and unlabelled images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Fraction, NonNegative, Positive
from ppcls.config.base.problems import problem
from ppcls.config.base.section import Section
from ppcls.loss.base import Criterion
from ppcls.outputs import first_rows, get_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    from ppcls.metric.build import CountMetric
    from ppcls.outputs import Outputs


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

    def build(self, criterion: Criterion) -> Criterion:
        """Adds the loss of unlabelled images to a criterion of labelled images.

        Args:
            criterion: Loss of labelled images.

        Returns:
            A function of outputs and of B labels. The rows of the outputs are B labelled images, U weak
            views, and U strong views of the same images.
        """
        from ppcls.loss.functional.pseudo_labels import pseudo_label_loss

        def semi_supervised(outputs: Outputs, label: Tensor) -> Tensor:
            loss = criterion(first_rows(outputs, len(label)), label)
            count = len(label)
            logits = get_logits(outputs)
            if len(logits) == count:  # no unlabelled images, for example when speed is measured
                return loss
            weak, strong = logits[count:].chunk(2)
            return loss + self.weight * pseudo_label_loss(weak, strong, self.temperature, self.threshold)

        return semi_supervised

    def metric(self) -> CountMetric:
        """Returns the training metric of the unlabelled images.

        Its values are the mean loss of the unlabelled images without ``weight``, and the share of the images
        whose prediction is confident. The rows of the outputs are those of `build`.
        """
        from ppcls.loss.functional.pseudo_labels import pseudo_label_sums
        from ppcls.metric.build import CountMetric

        def count(outputs: Outputs, label: Tensor) -> Tensor:
            unlabelled = get_logits(outputs)[len(label) :]
            weak, strong = unlabelled[: len(unlabelled) // 2], unlabelled[len(unlabelled) // 2 :]
            return pseudo_label_sums(weak, strong, self.temperature, self.threshold)

        def values(sums: NDArray[Any], _: float) -> list[float]:
            loss, confident, images = sums.tolist()
            return [loss / images, confident / images] if images else [math.nan, math.nan]

        return CountMetric(("unlabelled_loss", "confident"), 3, count, values, "float32")

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflict with models other than a single classifier."""
        if facts.models or facts.embeds:
            kind = "DistillationModel" if facts.models else "RecModel"
            yield problem(f"semi-supervised training of a {kind} is not supported; use a single architecture")
