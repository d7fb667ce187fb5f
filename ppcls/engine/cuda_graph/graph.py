"""Device work that is recorded once and started as a whole: a CUDA graph.

A ResNet-50 step is some 700 kernels. Python and Paddle need about 30 ms to start them one by one, which is
longer than a fast GPU needs to run them; a graph is started in one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

import paddle
from paddle.device.cuda.graphs import CUDAGraph

from ppcls.engine.cuda_graph.workspace import Workspace, conv_workspace
from ppcls.errors import UserError


class Recorded(Protocol):
    """Work that can be done again and again, on the same memory."""

    def replay(self) -> None:
        """Does the work once; on a GPU it is only started."""


class Recorder:
    """Records work on the present GPU, all of it with one workspace."""

    def __init__(self) -> None:
        self._workspace: Workspace | None = None

    def __call__(self, work: Callable[[], None]) -> Recorded:
        """Records what ``work`` has the GPU do; see `CudaGraph`."""
        if self._workspace is None:
            self._workspace = conv_workspace()
        return CudaGraph(work, self._workspace)


class CudaGraph:
    """Records what ``work`` has the GPU do; it is not done yet.

    The memory that the work takes stays the graph's own, so what is cached of earlier steps is given back
    before.

    Args:
        work: Starts kernels and nothing else: it may not read from the device. Its host side runs once.
        workspace: For convolutions.

    Raises:
        UserError: The work can't be recorded.
    """

    def __init__(self, work: Callable[[], None], workspace: Workspace) -> None:
        paddle.device.cuda.synchronize()
        paddle.device.cuda.empty_cache()
        # What the compiled model's executor asks for; Paddle 3 has it so anyway.
        for name, value in (("new_executor_use_cuda_graph", True), ("sync_nccl_allreduce", False)):
            if paddle.base.core.globals().is_public(f"FLAGS_{name}"):
                paddle.set_flags({f"FLAGS_{name}": value})
        # In so many words: by itself it takes the GPU that Paddle's launcher names in the environment.
        self._graph = CUDAGraph(paddle.framework._current_expected_place())
        # Paddle's executor keeps tensors in the graph's memory to the end of the process; if the graph
        # went first, that would be a crash at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._graph))
        self._workspace = workspace  # which lives as long as the graph may be replayed
        with workspace.lent():
            self._graph.capture_begin()
            try:
                work()
            except (RuntimeError, OSError, ValueError) as error:
                raise UserError(
                    f"the training step can't be recorded as a CUDA graph: {error}; "
                    "set Global.cuda_graph=False"
                ) from error
            self._graph.capture_end()

    def replay(self) -> None:
        """Starts the work."""
        self._graph.replay()
