"""A trained model that predicts, in the precision in which it is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle.nn import functional as F

from ppcls.arch.reparameterize import reparameterize
from ppcls.config.schema import Config
from ppcls.deploy.source import need_infer
from ppcls.engine.distillation import read_inferred
from ppcls.engine.precision import build_precision
from ppcls.engine.state import build_network
from ppcls.engine.weights import fill_model
from ppcls.runtime import Runtime

_SCORING = {"softmax": F.softmax, "sigmoid": F.sigmoid}


class TrainedModel:
    """A `ppcls.deploy.predictor.Model` of a checkpoint.

    Args:
        config: The whole config.
        weights: As `ppcls.engine.weights.read_weights` takes them.
        runtime: Where it runs.

    Raises:
        UserError: The weights can't be read or are another model's, or the precision does not suit
            the device.
    """

    def __init__(self, config: Config, weights: Path, runtime: Runtime) -> None:
        self._precision = build_precision(config.AMP, runtime.device)
        self._model = build_network(config)
        fill_model(self._model, read_inferred(config, weights), weights)
        reparameterize(self._model)
        self._precision.prepare(self._model, None)
        self._model.eval()
        self._scoring = _SCORING[need_infer(config).PostProcess.activation]

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def scores(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.Model`."""
        with self._precision.evaluation():
            image = self._precision.images(paddle.to_tensor(images), training=False)
            logits = self._model(image).astype("float32")
        scores: NDArray[Any] = self._scoring(logits).numpy()
        return scores
