"""Runs a Paddle Inference predictor as CUDA graphs, one per shape of its input.

Paddle Inference launches the kernels of a network one by one. For a single image, this takes several times as
long as the kernels themselves. A CUDA graph launches all of them with one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.deploy.models.gpu.pinned_memory import PinnedBuffer
from ppcls.engine.cuda_graph.graph import GraphCapture

Array = NDArray[Any]

_PLAIN_RUNS = 2  # runs of a shape before its graph is captured
_MAX_GRAPHS = 4  # each graph keeps the memory of its activations


class PredictorGraphs:
    """Runs a predictor on a GPU. Captures the first shapes that occur repeatedly.

    Args:
        predictor: Predictor whose program a CUDA graph can capture.
    """

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        self._capture = GraphCapture(tries=True)
        self._buffer = PinnedBuffer()
        self._runs: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], _ShapeGraph] = {}

    def join(self, images: Sequence[Array]) -> Array:
        """See `ppcls.deploy.predictor.JoiningModel`."""
        return self._buffer.join(images)

    def run(self, images: Any) -> Array | None:
        """Returns the outputs for a batch, or None if the caller must run the predictor itself.

        Args:
            images: Inputs [B, ...] in the dtype of the model, as a contiguous array or a tensor on the GPU.

        Raises:
            UserError: The program cannot be captured.
        """
        shape = tuple(images.shape)
        if shape not in self._graphs:
            self._runs[shape] += 1
            if self._runs[shape] <= _PLAIN_RUNS or len(self._graphs) == _MAX_GRAPHS:
                return None
            self._graphs[shape] = _ShapeGraph(self._predictor.clone(), images, self._capture)
        source = self._buffer.fill(images) if isinstance(images, np.ndarray) else images
        return self._graphs[shape].run(source)


class _ShapeGraph:
    """A CUDA graph of a predictor for one shape of its input.

    Args:
        clone: Predictor that shares the weights of others, but not the tensors between operators. It must not
            run again, because a graph reads and writes fixed addresses.
        images: A batch.
        capture: Function that captures device work.
    """

    def __init__(self, clone: Any, images: Any, capture: GraphCapture) -> None:
        self._clone = clone
        self._images = paddle.to_tensor(images) if isinstance(images, np.ndarray) else images.clone()
        self._input = clone.get_input_handle(clone.get_input_names()[0])
        self._output = clone.get_output_handle(clone.get_output_names()[0])
        self._input.share_external_data(self._images)
        self._graph = capture(clone.run)

    def run(self, images: Any) -> Array:
        """Returns the outputs [B, ...] for a batch of the captured shape."""
        if isinstance(images, np.ndarray):
            self._input.copy_from_cpu(images)  # to the memory of self._images
        else:
            self._images.copy_(images, False)
        self._graph.replay()
        outputs: Array = self._output.copy_to_cpu()
        return outputs
