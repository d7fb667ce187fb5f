"""Compares an exported model with the trained one: accuracy, agreement and differences on images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.description import Comparison, ModelDescription
from ppcls.deploy.predictor import InferenceModel
from ppcls.errors import UserError, counted

Array = NDArray[Any]
Batches = Iterable[tuple[Array, Array | None]]


def compare_accuracy(
    model: InferenceModel,
    trained: Callable[[Array], Array],
    description: ModelDescription,
    batches: Batches,
    source: str,
) -> Comparison:
    """Returns the comparison of an exported model with the trained model on images.

    Args:
        model: The exported model.
        trained: Function of the trained model, which maps prepared images to scores [B, class_num] or
            embeddings [B, D].
        description: Description of the exported model.
        batches: Prepared images with their labels, or with None for images without labels.
        source: List file, folder or container of the images, or ``random``.

    Returns:
        The comparison. Without labels, its accuracies are None.

    Raises:
        UserError: There are no images, or an output of the exported model is not finite.
    """
    outputs = [(model.run(images), trained(images), labels) for images, labels in batches]
    if not outputs:
        raise UserError(f"{source}: no image can be decoded")
    exported, expected = (np.concatenate([batch[side] for batch in outputs]) for side in (0, 1))
    name = description.Global.model_name
    if not np.isfinite(exported).all():
        raise UserError(
            f"{name}: the exported model returns NaN or infinite values, because a value overflows; "
            "nothing was written; use --precision float32"
        )
    labels = None if outputs[0][2] is None else np.concatenate([batch[2] for batch in outputs])
    decide = _decisions(description)
    ours = decide(exported, labels)
    theirs = decide(expected, labels)
    accuracies: list[float | None] = [None, None]
    if labels is not None:
        accuracies = [float(np.mean(decisions == labels)) for decisions in (theirs, ours)]
    return Comparison(
        source=source,
        images=len(exported),
        trained_accuracy=accuracies[0],
        exported_accuracy=accuracies[1],
        agreement=float(np.mean(ours == theirs)),
        largest_difference=float(np.abs(exported - expected).max()),
    )


def check_accuracy(comparison: Comparison, model: str, limit: float, advice: str) -> None:
    """Checks that the exported model loses at most ``limit`` percentage points of accuracy.

    Args:
        comparison: Result of `compare_accuracy`.
        model: Precision and name of the model, for the message.
        limit: Maximum loss in percentage points.
        advice: Options to try, for the message.

    Raises:
        UserError: The exported model loses more than ``limit``.
    """
    before = comparison.trained_accuracy
    after = comparison.exported_accuracy
    if before is None or after is None or 100 * (before - after) <= limit:
        return
    raise UserError(
        f"{model} loses {100 * (before - after):.2f} percentage points of accuracy on "
        f"{counted(comparison.images, 'image')} of {comparison.source} ({before:.4f} trained, {after:.4f} "
        f"exported), more than --max-accuracy-loss {limit:g}; nothing was written. Try {advice}, or a larger "
        "--max-accuracy-loss"
    )


def _decisions(description: ModelDescription) -> Callable[[Array, Array | None], Array]:
    """Returns a function that maps outputs to decisions of the same shape and kind as the labels."""
    postprocess = description.postprocess

    def nearest_labels(embeddings: Array, labels: Array | None) -> Array:
        """Returns the label of the most similar other image or, without labels, its index."""
        similarities = embeddings @ embeddings.T
        np.fill_diagonal(similarities, -np.inf)
        nearest: Array = similarities.argmax(axis=1)
        return nearest if labels is None else labels[nearest]

    if postprocess is None:
        return nearest_labels
    return lambda scores, _labels: postprocess.decide(scores)
