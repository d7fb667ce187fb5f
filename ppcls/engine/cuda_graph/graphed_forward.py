"""Captures forward passes as CUDA graphs, and replays them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import paddle
from paddle import nn

from ppcls.engine.cuda_graph.graph import Capture
from ppcls.outputs import Outputs, map_outputs

_EAGER_BATCHES = 2  # batches of a shape before the capture, which choose kernels and allocate memory
_MAX_GRAPHS = 4  # each graph keeps the memory of its activations


class GraphedForward:
    """Runs forward passes by replaying CUDA graphs. The results equal those of eager forward passes.

    The first shapes that occur repeatedly are captured. All other shapes run eagerly.

    Args:
        capture: Function that captures device work. Graphs that share a capture function share one workspace
            of convolutions.
        ready: Function that returns whether the addresses of the weights no longer change.
    """

    def __init__(self, capture: Capture, ready: Callable[[], bool] = lambda: True) -> None:
        self._capture = capture
        self._ready = ready
        self._eager: Counter[tuple[object, ...]] = Counter()
        self._graphs: dict[tuple[object, ...], _ForwardGraph] = {}

    def __call__(self, model: nn.Layer, image: paddle.Tensor) -> Outputs:
        """Returns the outputs of the model."""
        key = (model, tuple(image.shape), image.dtype)
        if key not in self._graphs:
            due = self._eager[key] >= _EAGER_BATCHES and len(self._graphs) < _MAX_GRAPHS
            if not (due and self._ready()):
                self._eager[key] += 1
                outputs: Outputs = model(image)
                return outputs
            self._graphs[key] = _ForwardGraph(model, image, self._capture)
        return self._graphs[key].replay(image)


class _ForwardGraph:
    """A CUDA graph of a model for one shape and dtype of its input."""

    def __init__(self, model: nn.Layer, image: paddle.Tensor, capture: Capture) -> None:
        self._model = model
        self._image = image.clone()
        self._outputs: Outputs
        self._graph = capture(self._run)

    def replay(self, image: paddle.Tensor) -> Outputs:
        self._image.copy_(image, False)
        self._graph.replay()
        return map_outputs(self._outputs, paddle.Tensor.clone)

    def _run(self) -> None:
        self._outputs = self._model(self._image)
