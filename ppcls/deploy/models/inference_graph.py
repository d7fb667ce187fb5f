"""CUDA graphs of a Paddle Inference predictor, for input shapes that are requested repeatedly.

Paddle Inference launches the kernels of a network one by one. For ResNet-50 and a single image, this takes
several times as long as the kernels themselves. A CUDA graph launches all of them with one call.

A graph reads and writes fixed addresses. Therefore each graph has its own clone of the predictor, which only
runs with one shape: the clone shares the weights, but owns the tensors between the operators. Temporary
memory comes from the private pool of the graph, and the workspace of convolutions from `Workspace`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.deploy.models.pinned_memory import PinnedBuffer
from ppcls.engine.cuda_graph.graph import CudaGraph, Workspace, build_workspace, find_capture_error
from ppcls.errors import UserError

Array = NDArray[Any]

_PLAIN_REQUESTS = 2  # requests of a shape before its graph is captured
_MAX_GRAPHS = 4
_LARGEST_BATCH = 64  # with larger batches, kernels run longer than their launch takes
_TIMED_RUNS = 5
_WARM_UP = 2  # runs of a clone before the capture, which allocate memory and choose kernels
# Bounds of the difference between the outputs of a graph and of a plain run, which uses the same kernels.
_RTOL, _ATOL = 1e-3, 1e-4
# All predictors use the same CUDA stream. A capture records everything that any thread launches on it.
STREAM_LOCK = threading.RLock()


class ShapeGraph(Protocol):
    """Interface of a predictor that is captured for one shape of the input.

    Attributes:
        workspace: Workspace that other graphs can share.
    """

    workspace: Workspace

    def run(self, images: Any) -> Array:
        """Returns the outputs [B, ...] for a batch of the captured shape, by a replay."""

    def run_plain(self, images: Any) -> Array:
        """Returns the outputs [B, ...] of the same kernels without a replay."""


class PredictorGraphs:
    """CUDA graphs of a predictor.

    Args:
        name: Name of the model, for messages.
        predictor: Predictor on the current GPU.
        run_plain: Function that runs the model without a graph, possibly with other kernels.
        capture: Function that captures the predictor for the shape of a batch; None to capture CUDA graphs.
            It also receives the workspace of an earlier graph.
    """

    def __init__(
        self,
        name: str,
        predictor: Any,
        run_plain: Callable[[Any], Array],
        capture: Callable[[Any, Any, Workspace | None], ShapeGraph] | None = None,
    ) -> None:
        self._name, self._predictor, self._run_plain = name, predictor, run_plain
        self._capture = capture or CudaShapeGraph
        self._requests: Counter[tuple[int, ...]] = Counter()
        self._graphs: dict[tuple[int, ...], ShapeGraph | None] = {}  # None if a plain run is faster
        self._workspace: Workspace | None = None
        self._failed = False

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Input shapes that run as graphs."""
        return [shape for shape, graph in self._graphs.items() if graph is not None]

    def run(self, images: Any) -> Array | None:
        """Returns the outputs for a batch, or None if there is no graph for its shape.

        Args:
            images: Inputs [B, ...] in the dtype of the model, as a contiguous NumPy array or a Paddle tensor
                on the GPU.
        """
        shape = tuple(images.shape)
        if shape not in self._graphs:
            if self._failed or len(self._graphs) >= _MAX_GRAPHS or shape[0] > _LARGEST_BATCH:
                return None
            self._requests[shape] += 1
            if self._requests[shape] <= _PLAIN_REQUESTS:
                return None
            self._add_graph(shape, images)
        graph = self._graphs.get(shape)
        return None if graph is None else graph.run(images)

    def _add_graph(self, shape: tuple[int, ...], images: Any) -> None:
        """Captures a graph, and keeps it if it is correct and faster than a plain run.

        After a failure, reports the reason and captures no other shapes.
        """
        try:
            graph = self._capture(self._predictor, images, self._workspace)
            self._workspace = graph.workspace
            _verify(graph, images if isinstance(images, np.ndarray) else images.numpy())
        except (UserError, RuntimeError, OSError, ValueError) as error:
            self._failed = True
            sys.stderr.write(
                f"warning: {self._name}: runs without a CUDA graph, which would be faster for small batches: "
                f"{error}; Infer.cuda_graph=False hides this message\n"
            )
            return
        graphed, plain = (_shortest_time(run, images) for run in (graph.run, self._run_plain))
        self._graphs[shape] = graph if graphed < plain else None


def _verify(graph: ShapeGraph, batch: Array) -> None:
    """Compares replays with plain runs on two batches.

    Raises:
        UserError: The outputs differ.
    """
    for images in (batch, np.ascontiguousarray(batch[:, ::-1])):
        expected = graph.run_plain(images)
        outputs = graph.run(images)
        if not np.allclose(outputs, expected, _RTOL, _ATOL, equal_nan=True):
            difference = float(np.abs(outputs - expected).max())
            raise UserError(
                f"the outputs of the graph for the input shape {list(batch.shape)} differ by "
                f"{difference:.1e} from those of a plain run, expected at most {_ATOL:.0e}"
            )


def _shortest_time(run: Callable[[Any], Array], images: Any) -> float:
    """Returns the shortest duration of a few runs in seconds."""
    durations = []
    for _ in range(_TIMED_RUNS):
        start = time.perf_counter()
        run(images)
        durations.append(time.perf_counter() - start)
    return min(durations)


class CudaShapeGraph:
    """A CUDA graph of a predictor for one shape of the input.

    Args:
        predictor: Predictor, which is cloned.
        images: A batch, as a NumPy array or a Paddle tensor on the GPU.
        workspace: Workspace of another graph, to be shared if it is large enough.

    Attributes:
        workspace: Workspace of the convolutions.

    Raises:
        UserError: The run cannot be captured.
    """

    def __init__(self, predictor: Any, images: Any, workspace: Workspace | None) -> None:
        self._clone = predictor.clone()
        (name,) = self._clone.get_input_names()
        shape = list(images.shape)
        dtype = np.dtype(str(images.dtype).removeprefix("paddle."))
        self._buffer = PinnedBuffer()
        self._images = paddle.zeros(shape, str(dtype))
        self._input = self._clone.get_input_handle(name)
        self._input.share_external_data(self._images)
        self._upload(images)
        for _ in range(_WARM_UP):
            self._clone.run()
        self._output = self._clone.get_output_handle(self._clone.get_output_names()[0])
        self._output.copy_to_cpu()  # waits for the runs
        if reason := find_capture_error(self._clone.run):
            raise UserError(f"it cannot be captured: {reason}")
        self.workspace = _find_workspace(workspace)
        self._graph = CudaGraph(self._clone.run, self.workspace)

    def run(self, images: Any) -> Array:
        """See `ShapeGraph.run`."""
        self._upload(images)
        self._graph.replay()
        outputs: Array = self._output.copy_to_cpu()
        return outputs

    def run_plain(self, images: Any) -> Array:
        """See `ShapeGraph.run_plain`. The clone reads and writes the same memory as the graph."""
        self._upload(images)
        self._clone.run()
        outputs: Array = self._output.copy_to_cpu()
        return outputs

    def _upload(self, images: Any) -> None:
        """Copies a batch to the memory of the input, which has a fixed address."""
        if isinstance(images, np.ndarray):
            self._input.copy_from_cpu(self._buffer.fill(images))
        else:
            self._images.copy_(images, False)


def _find_workspace(shared: Workspace | None) -> Workspace:
    """Returns a workspace that is large enough for a predictor that has just run."""
    # All memory that a run allocates only temporarily, including workspaces, fits into the difference.
    temporary = paddle.device.cuda.max_memory_allocated() - paddle.device.cuda.memory_allocated()
    if shared is not None and shared.size >= temporary:
        return shared
    return build_workspace(temporary)
