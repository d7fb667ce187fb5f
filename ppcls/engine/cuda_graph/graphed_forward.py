"""Captures the forward pass of evaluations as a CUDA graph, and replays it."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn

from ppcls.engine.cuda_graph.graph import Replayable
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.outputs import Outputs, map_outputs

_EAGER_BATCHES = 2  # batches of a shape before the capture, which choose kernels and allocate memory


class GraphedForward:
    """Runs forward passes by replaying a CUDA graph. The results equal those of eager forward passes.

    Args:
        step: Step of the run. The forward pass is captured after the step, because the capture of the step
            moves the weights. Both captures share one workspace of convolutions.
    """

    def __init__(self, step: GraphedStep) -> None:
        self._step = step
        self._input: tuple[Any, ...] | None = None  # model, shape and dtype
        self._eager = 0
        self._graph: Replayable | None = None
        self._image: paddle.Tensor
        self._outputs: Outputs

    def __call__(self, model: nn.Layer, image: paddle.Tensor) -> Outputs:
        """Returns the outputs of the model. A change of model, shape or dtype causes a new capture."""
        current = (model, tuple(image.shape), image.dtype)
        if self._input != current:
            self._input, self._eager, self._graph = current, 0, None
        if self._graph is None and self._step.captured and self._eager >= _EAGER_BATCHES:
            self._image = image.clone()
            self._graph = self._step.capture(lambda: self._run(model))
        if self._graph is None:
            self._eager += 1
            outputs: Outputs = model(image)
            return outputs
        self._image.copy_(image, False)
        self._graph.replay()
        return map_outputs(self._outputs, paddle.Tensor.clone)

    def _run(self, model: nn.Layer) -> None:
        self._outputs = model(self._image)
