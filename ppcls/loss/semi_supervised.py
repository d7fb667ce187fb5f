"""Implements the loss of FixMatch (Sohn et al. 2020).

Confident predictions for weakly augmented images are used as labels of the same images with strong
augmentation.
"""

from __future__ import annotations

import paddle
from paddle import Tensor
from paddle.nn import functional as F

from ppcls.config.sections.objective import SSL
from ppcls.loss.build import Criterion
from ppcls.outputs import Outputs, first_rows, get_logits


def with_pseudo_labels(criterion: Criterion, spec: SSL) -> Criterion:
    """Adds the loss of unlabelled images to a criterion of labelled images.

    Args:
        criterion: Loss of labelled images.
        spec: Config of the loss of unlabelled images.

    Returns:
        A function of outputs and of B labels. The rows of the outputs are B labelled images, U weak views,
        and U strong views of the same images.
    """

    def semi_supervised(outputs: Outputs, label: Tensor) -> Tensor:
        loss = criterion(first_rows(outputs, len(label)), label)
        count = len(label)
        logits = get_logits(outputs)
        if len(logits) == count:  # no unlabelled images, for example when speed is measured
            return loss
        weak, strong = logits[count:].chunk(2)
        return loss + spec.weight * pseudo_label_loss(weak, strong, spec.temperature, spec.threshold)

    return semi_supervised


def pseudo_label_loss(weak: Tensor, strong: Tensor, temperature: float, threshold: float) -> Tensor:
    """Returns the cross-entropy with confident pseudo labels (Sohn et al. 2020, equation 4).

    Args:
        weak: Logits of the weak views, [U, C]. They get no gradient.
        strong: Logits of the strong views, [U, C].
        temperature: Divisor of the weak logits.
        threshold: Minimum probability of a class that is used as a label.

    Returns:
        Float32 scalar, the sum over confident images, divided by U.
    """
    with paddle.amp.auto_cast(enable=False):
        probability = F.softmax(weak.detach().astype("float32") / temperature, axis=-1)
        confident = (probability.max(axis=-1) >= threshold).astype("float32")
        cost = F.cross_entropy(strong.astype("float32"), probability.argmax(axis=-1), reduction="none")
        return (cost.reshape([-1]) * confident).mean()
