"""Runs the images of a batch in parallel on the cores of a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ppcls.deploy.predictor import InferenceModel

SLICE = 4  # number of images that one core processes at a time; their activations fit into its cache


class SlicedModel:
    """An `InferenceModel` for a CPU that divides batches into slices, which the cores process in parallel.

    This is faster than dividing each operator among the cores, which then wait for each other after each
    operator.

    Args:
        model: Model that divides each operator among the cores. It runs the images that do not fill a slice
            for each core.
        per_core: The same model for batches of ``SLICE`` images. Several threads can call it at the same
            time, and each call uses one core.
        cores: Number of cores.

    Attributes:
        engine: Name of the engine that runs the model, with its version, device and precision.
        per_core: See above.
        cores: Number of threads that should call ``per_core`` at the same time.
    """

    def __init__(self, model: InferenceModel, per_core: InferenceModel, cores: int) -> None:
        self.engine = model.engine
        self.per_core = per_core
        self.cores = cores
        self._model = model
        self._pool = ThreadPoolExecutor(cores)

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        sliced = len(images) - len(images) % (SLICE * self.cores)
        slices = [images[first : first + SLICE] for first in range(0, sliced, SLICE)]
        outputs = list(self._pool.map(self.per_core.run, slices))
        if sliced < len(images):
            outputs.append(self._model.run(images[sliced:]))
        return np.concatenate(outputs)
