"""Builds the function that computes the weighted sum of a config's losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ppcls.loss.base import ClassCounts, ClassStatistics, Criterion, Loss, layer_name

if TYPE_CHECKING:
    from paddle import Tensor, nn

    from ppcls.arch.heads import MarginHead
    from ppcls.outputs import Outputs


def build_criterion(
    losses: Sequence[Loss],
    positives: NDArray[Any] | None = None,
    margins: Mapping[str, MarginHead] | None = None,
    counts: ClassCounts | None = None,
    model: nn.Layer | None = None,
) -> Criterion:
    """Builds a function that computes the weighted sum of ``losses``.

    Args:
        losses: One or more losses.
        positives: Share of images that have each class, [C], for losses whose weights depend on it.
        margins: Heads with a margin, by the name of the output that contains the head's cosines.
        counts: Number of training images per class, for losses whose weights depend on it.
        model: Model that contains the trainable layers of the losses; see `learned_losses`. None if no loss
            needs it.

    Returns:
        A function of the model's outputs and of labels. Outputs have any floating dtype; an example is
        logits, [B, C]. Labels are [B] int64 or [B, C] float32. The result is a float32 scalar, the mean over
        the batch.

    Raises:
        ValueError: ``losses`` is empty, or a loss needs ``counts``, which is None.
    """
    if not losses:
        raise ValueError("expected at least one loss, got none")
    data = ClassStatistics(positives, counts)
    terms = [
        (loss.build_term(data, layer_name(position), model), loss.weight)
        for position, loss in enumerate(losses)
    ]

    def criterion(outputs: Outputs, label: Tensor) -> Tensor:
        logits = {
            name: head.apply_margin(outputs[name], label)
            for name, head in (margins or {}).items()
            if name in outputs
        }
        if logits:
            # A copy, because the metrics of training need the cosines without the margin.
            outputs = {**outputs, **logits}
        return sum(weight * term(outputs, label) for term, weight in terms)

    return criterion
