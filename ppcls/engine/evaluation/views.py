"""Evaluates a model with test-time augmentation."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.data.section import DataLoader
from ppcls.data.views import ImageViews, ViewKind, transforms_for_views
from ppcls.errors import UserError

_SMALLEST = 1e-30  # probability


class AveragedLogits(nn.Layer):  # type: ignore[misc]
    """Averages the probabilities of all views of an image, and returns the logits of the mean.

    Args:
        model: Classifier.
        views: Function that returns the views of images.
        several_labels: Whether images may have several labels. If so, probabilities are sigmoids of the
            logits, otherwise softmaxes.
    """

    def __init__(self, model: nn.Layer, views: ImageViews, several_labels: bool) -> None:
        super().__init__()
        self._model = model
        self._views = views
        self._several_labels = several_labels

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, [B, class_num] float32, of images, [B, ...]."""
        activation = F.sigmoid if self._several_labels else F.softmax
        scores = [activation(self._model(view).astype("float32")) for view in self._views(images)]
        mean = paddle.stack(scores).mean(0).clip(_SMALLEST, 1.0)
        logits: Tensor = mean.log()
        return logits - (1.0 - mean).clip(_SMALLEST).log() if self._several_labels else logits


def data_for_views(data: DataLoader, kind: ViewKind, *, embeds: bool) -> DataLoader:
    """Returns data sets whose ``Eval`` has the transforms that the views need.

    Args:
        embeds: Whether the model returns embeddings.
        kind: Kind of test-time augmentation.

    Raises:
        UserError: The model returns embeddings, or the views do not support the transforms of the config.
    """
    split = data.evaluated.get("Eval")
    if embeds or split is None:
        raise UserError(
            "--tta needs a classifier and DataLoader.Eval with one data set; embeddings can't be averaged; "
            "remove --tta"
        )
    ops = transforms_for_views(kind, split.dataset.transform_ops)
    dataset = split.dataset.model_copy(update={"transform_ops": ops})
    return data.model_copy(update={"Eval": split.model_copy(update={"dataset": dataset})})
