"""The proof that an exported model computes what the trained one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import Op
from ppcls.deploy.models.description import Description
from ppcls.deploy.predictor import Model
from ppcls.errors import UserError

Array = NDArray[Any]

TOLERANCE = 1e-4
_BATCHES = (1, 2, 5)
_SIDES = ((97, 64), (150, 211), (33, 80))  # of images that the model prepares itself
_LEAST = 1e-27  # scores below it count as it: Paddle's softmax on a CPU gives none below exp(-64)


def check(
    model: Model, description: Description, ops: Sequence[Op], expected: Callable[[Array], Array]
) -> float:
    """Compares an exported model's scores with the trained one's, or its embeddings, on random images.

    Where the model prepares images itself, the other one gets them as the loader would prepare them.

    Args:
        model: As it was exported.
        description: Of it.
        ops: The chain that makes the trained model's input.
        expected: Maps this input to scores [B, class_num], or embeddings [B, D].

    Returns:
        The largest difference of two logarithms of scores, relative to the largest of them, or to 1; of two
        numbers of embeddings, relative to the largest of these.

    Raises:
        UserError: It is more than `TOLERANCE`.
    """
    what, compare = "scores", _scores_apart
    if description.told is None:
        what, compare = "embeddings", _embeddings_apart
    random = np.random.default_rng(0)
    worst = 0.0
    for count, sides in zip(_BATCHES, _SIDES, strict=True):
        if description.PreProcess.in_graph:
            images = random.integers(0, 256, (count, *sides, 3), np.uint8)
            given = np.stack([run_on_pixels(ops, image) for image in images]).astype(np.float32)
        else:
            images = given = random.standard_normal((count, *description.Input.shape[1:]), np.float32)
        own, other = model.run(images), expected(given)
        difference = compare(own, other) if own.shape == other.shape else float("inf")
        if not difference <= TOLERANCE:
            raise UserError(
                f"the exported {description.Global.model_name}'s {what} differ by {difference:.1e} from the "
                f"trained one's, more than {TOLERANCE:.0e}, with {count} images; nothing was written"
            )
        worst = max(worst, difference)
    return worst


def _scores_apart(own: Array, other: Array) -> float:
    logs = [np.log(np.maximum(each.astype(np.float64), _LEAST)) for each in (own, other)]
    return float(np.abs(logs[0] - logs[1]).max() / max(1.0, np.abs(logs[1]).max()))


def _embeddings_apart(own: Array, other: Array) -> float:
    return float(np.abs(own - other).max() / np.abs(other).max())
