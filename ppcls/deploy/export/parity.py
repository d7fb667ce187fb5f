"""Compares the outputs of an exported model and of the trained model on random images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import Op
from ppcls.deploy.models.description import ModelDescription
from ppcls.deploy.predictor import InferenceModel
from ppcls.errors import UserError, counted

Array = NDArray[Any]

TOLERANCE = 1e-4
BATCHES = (1, 2, 5)
_SIZES = ((97, 64), (150, 211), (33, 80))  # sizes of images for models that prepare images themselves
_SMALLEST = 1e-27  # lower limit of scores, because Paddle's softmax on a CPU returns none below exp(-64)


def compare(
    model: InferenceModel,
    description: ModelDescription,
    ops: Sequence[Op],
    expected: Callable[[Array], Array],
) -> float:
    """Returns the largest relative difference between the outputs of an exported and the trained model.

    If the exported model prepares images of any size, the images for the trained model are prepared with
    ``ops``.

    Args:
        model: Exported model.
        description: Description of the exported model.
        ops: Transforms that prepare the input of the trained model.
        expected: Function of the trained model, which maps prepared images to scores [B, class_num] or
            embeddings [B, D]. For a model that only normalizes images, it maps the same images as the model.

    Returns:
        For scores, the largest difference of their logarithms, divided by the largest absolute logarithm, or
        by 1 if this is larger. For embeddings, the largest difference of their values, divided by the largest
        absolute value.

    Raises:
        UserError: The difference exceeds `TOLERANCE`.
    """
    embeds = description.postprocess is None
    raw = description.Output.activation in ("l2_norm", "none")
    random = np.random.default_rng(0)
    worst = 0.0
    for count, size in zip(BATCHES, _SIZES, strict=True):
        if description.PreProcess.in_graph is True:
            images = random.integers(0, 256, (count, *size, 3), np.uint8)
            prepared = np.stack([run_on_pixels(ops, image) for image in images]).astype(np.float32)
        else:
            images = prepared = description.random_images(count, random)
        exported = model.run(images)
        trained = expected(prepared)
        difference = float("inf")
        if exported.shape == trained.shape:
            difference = (_embedding_difference if raw else _score_difference)(exported, trained)
        if not difference <= TOLERANCE:
            raise UserError(
                f"the {'embeddings' if embeds else 'scores'} of the exported {description.Global.model_name} "
                f"differ by {difference:.1e} from those of the trained model for {counted(count, 'image')}, "
                f"expected at most {TOLERANCE:.0e}; nothing was written"
            )
        worst = max(worst, difference)
    return worst


def _score_difference(exported: Array, trained: Array) -> float:
    logs = [np.log(np.maximum(scores.astype(np.float64), _SMALLEST)) for scores in (exported, trained)]
    return float(np.abs(logs[0] - logs[1]).max() / max(1.0, np.abs(logs[1]).max()))


def _embedding_difference(exported: Array, trained: Array) -> float:
    return float(np.abs(exported - trained).max() / np.abs(trained).max())
