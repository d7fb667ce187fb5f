"""Prediction with test-time augmentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.views import ImageViews, ViewKind, transforms_for_views
from ppcls.deploy.models.source import ModelSource
from ppcls.deploy.predictor import InferenceModel, Predictor
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime


class AveragedModel:
    """An `InferenceModel` that returns the mean scores over several views of each image.

    Args:
        model: Model that predicts the views.
        views: Function that returns the views of a batch.
    """

    def __init__(self, model: InferenceModel, views: ImageViews) -> None:
        self.engine = model.engine
        self._model = model
        self._views = views

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        mean: NDArray[Any] = np.mean([self._model.run(view) for view in self._views(images)], axis=0)
        return mean


def predictor_with_views(source: ModelSource, kind: ViewKind, runtime: Runtime | None) -> Predictor:
    """Returns a predictor that averages the scores over several views of each image.

    Raises:
        UserError: The model returns embeddings or prepares images itself, or its transforms are not suitable.
    """
    description = source.description
    if description.postprocess is None or description.PreProcess.in_graph is True:
        raise UserError(
            f"{source.file}: --tta needs a model that returns classes and was exported without "
            "--preprocess all"
        )
    ops = transforms_for_views(kind, description.PreProcess.transform_ops)
    prepared = description.PreProcess.model_copy(update={"transform_ops": ops})
    source = replace(source, description=description.model_copy(update={"PreProcess": prepared}))
    predictor = Predictor(source, runtime=runtime)
    tensor = predictor.description.Input
    sides = tensor.shape[2:] if tensor.layout == "NCHW" else tensor.shape[1:3]
    predictor.model = AveragedModel(predictor.model, ImageViews(kind, sides, tensor.layout))
    return predictor
