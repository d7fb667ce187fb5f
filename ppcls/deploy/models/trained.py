"""A trained model that predicts, in the precision in which it is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
from numpy.typing import NDArray

from ppcls.config.schema import Config
from ppcls.deploy.models.description import Description
from ppcls.deploy.models.network import ending, load_network
from ppcls.engine.core.precision import build_precision
from ppcls.outputs import map_outputs
from ppcls.runtime.start import Runtime


class TrainedModel:
    """A `ppcls.deploy.predictor.Model` of a checkpoint.

    Args:
        config: The whole config.
        description: Of the model.
        weights: As `ppcls.weights.files.read_weights` takes them.
        runtime: Where it runs.

    Raises:
        UserError: The weights can't be read or are another model's, or the precision does not suit
            the device.
    """

    def __init__(self, config: Config, description: Description, weights: Path, runtime: Runtime) -> None:
        self._precision = build_precision(config.AMP, runtime.device)
        self._model = load_network(config, weights)
        self._precision.prepare(self._model, None)
        self._model.eval()
        self._ending = ending(description.Output.activation)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.Model`."""
        with self._precision.evaluation():
            given = images if isinstance(images, paddle.Tensor) else paddle.to_tensor(images)
            image = self._precision.images(given, training=False)
            outputs = map_outputs(self._model(image), lambda each: each.astype("float32"))
        answers: NDArray[Any] = self._ending(outputs).numpy()
        return answers
