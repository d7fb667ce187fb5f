"""CUDA graphs: device work that is captured once and replayed by a single call.

A ResNet-50 step has about 700 kernels. Python and Paddle need about 30 ms to launch them one by one, which is
longer than a fast GPU needs to run them.

During a capture, Paddle allocates all memory in a separate pool of the graph, except the workspace of cuDNN's
convolutions. Paddle allocates the workspace in its normal pool, and frees it as soon as the convolution is
captured (``GPUContext::GetDnnWorkspace``). But every replay still writes to this memory, and would overwrite
a tensor that was allocated there later. Therefore all captured convolutions share one `Workspace`, which
stays reserved.

Work that calls `cut` is captured as several graphs, its parts. Each part has its own memory pool, because
Paddle has no public function that captures two graphs with the same pool. So memory that is free at the end
of a part is not used by the next parts.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import paddle
from paddle.device.cuda.graphs import CUDAGraph

from ppcls.arch.fused.cuda import current_stream
from ppcls.errors import UserError

_CAPTURE_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_CLEARING_RUNS = 3  # number of tries to run the work again after a failed capture
# Runs that leave the memory of the work free in Paddle's pool. A run frees the results of the previous one.
_RUNS_BEFORE_TRIAL = 2
_SMALLEST_BLOCK = 256  # bytes; the allocation unit of Paddle's allocator
# All models of a process use the same CUDA stream. A capture would record the work of other threads.
STREAM_LOCK = threading.Lock()
_Cut = Callable[[Callable[[], None]], None]
_cut_capture: _Cut | None = None  # cuts the current capture; Paddle captures one graph at a time


class Replayable(Protocol):
    """Interface of device work that can run any number of times on the same memory."""

    def replay(self) -> None:
        """Runs the work once. On a GPU, starts it without waiting."""


Capture = Callable[[Callable[[], None]], Replayable]


def cut(between: Callable[[], None]) -> None:
    """Calls ``between`` at this point of the work, outside of CUDA graphs.

    In a capture, this ends the current graph and begins the next one. Each replay then starts the first
    graph, calls ``between``, and starts the second graph. Without a capture, this only calls ``between``.
    """
    if _cut_capture is None:
        between()
    else:
        _cut_capture(between)


@contextmanager
def _cut_by(cut_capture: _Cut) -> Iterator[None]:
    """Returns a context in which `cut` calls ``cut_capture``."""
    global _cut_capture
    _cut_capture = cut_capture
    try:
        yield
    finally:
        _cut_capture = None


class MemoryPool(Protocol):
    """Interface of a memory pool.

    A pool allocates the smallest free block that is large enough. It grows if no free block is large enough.
    """

    def take(self, size: int) -> object:
        """Allocates a block of ``size`` bytes and returns it. The block is freed with its last reference."""

    def reserved(self) -> int:
        """Returns the size of the pool in bytes, allocated and free."""

    def shrink(self) -> None:
        """Returns completely free memory to the device."""


class GpuMemoryPool:
    """Paddle's memory pool on the current GPU."""

    def take(self, size: int) -> object:
        """Returns a tensor of ``size`` bytes."""
        return paddle.empty([size], "uint8")

    def reserved(self) -> int:
        """Returns the bytes of GPU memory that Paddle has reserved."""
        return int(paddle.device.cuda.memory_reserved())

    def shrink(self) -> None:
        """Empties Paddle's cache."""
        paddle.device.cuda.empty_cache()


class Workspace:
    """A block of GPU memory for captured convolutions, shared by all graphs of a run.

    Args:
        size: Size in bytes, a power of two of at least 256; the largest workspace of a convolution.
        memory: Memory pool; None for Paddle's.

    Attributes:
        size: Size in bytes.
    """

    def __init__(self, size: int, memory: MemoryPool | None = None) -> None:
        self.size = size
        self._memory = memory or GpuMemoryPool()
        self._block: object | None = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Returns a context in which this block is the only free block of the pool.

        A convolution that is captured in the context can therefore only use this block as its workspace.
        After the context, the block is reserved again.

        Raises:
            UserError: The pool does not behave as expected, so the block cannot be reserved.
        """
        memory = self._memory
        block = memory.take(self.size) if self._block is None else self._block
        others = _take_all(memory, self.size)
        memory.shrink()
        before = memory.reserved()
        others.append(memory.take(_SMALLEST_BLOCK))
        _check_pool(memory.reserved() > before)
        self._block = None
        del block
        yield
        before = memory.reserved()
        self._block = memory.take(self.size)
        _check_pool(memory.reserved() == before)


def _take_all(memory: MemoryPool, largest: int) -> list[object]:
    """Allocates all free blocks of a pool, from blocks of ``largest`` bytes to the smallest ones.

    Returns:
        The blocks that were free before. Blocks for which the pool grew are freed at the end, because the
        next allocation would reuse them if they were freed earlier.
    """
    blocks = []
    grown = []
    size = largest
    while size >= _SMALLEST_BLOCK:
        before = memory.reserved()
        block = memory.take(size)
        if memory.reserved() > before:
            grown.append(block)
            size //= 2
        else:
            blocks.append(block)
    return blocks


def _check_pool(expected: bool) -> None:
    if not expected:
        raise UserError(
            f"Global.cuda_graph: the GPU memory pool of Paddle {paddle.__version__} does not behave as "
            "expected, so a replayed step could overwrite other tensors; set Global.cuda_graph=False"
        )


def build_workspace() -> Workspace:
    """Returns a workspace of the maximum size that Paddle allows for a convolution, or a little larger."""
    name = "FLAGS_conv_workspace_size_limit"
    size = max(int(paddle.get_flags(name)[name]) << 20, _SMALLEST_BLOCK)
    return Workspace(1 << (size - 1).bit_length())


def find_capture_error(work: Callable[[], None]) -> str:
    """Tries to capture ``work`` with CUDA's driver, and returns the reason if this fails, else "".

    The graph is discarded. After an error in a capture by Paddle, the process could not continue, because
    Paddle would treat all later work as part of the capture. All parts of the work are captured as one graph.

    Args:
        work: Function to capture. Its temporary memory must be free in Paddle's pool, for example because it
            ran before.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    stream = ctypes.c_void_p(current_stream())
    graph = ctypes.c_void_p()
    reason = ""
    paddle.device.cuda.synchronize()
    if status := driver.cuStreamBeginCapture_v2(stream, _CAPTURE_THREAD_LOCAL):
        return f"cuStreamBeginCapture failed with error {status}"
    try:
        with _cut_by(lambda _: None):
            work()
    except (RuntimeError, OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "error(" in line), lines[-1]).strip()
    status = driver.cuStreamEndCapture(stream, ctypes.byref(graph))
    if graph.value:
        driver.cuGraphDestroy(graph)
    if status and not reason:
        reason = f"an operator waits for the GPU (CUDA error {status})"
    if reason:
        _clear_errors(work)
    return reason


def _clear_errors(work: Callable[[], None]) -> None:
    """Clears errors of a failed capture, which CUDA and cuDNN would report in their next calls."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    libraries = {line.split()[-1] for line in maps.splitlines() if "libcudart" in line}
    for library in libraries:
        ctypes.CDLL(library).cudaGetLastError()
    for _ in range(_CLEARING_RUNS):
        with suppress(RuntimeError, OSError):
            work()
            return


class GraphCapture:
    """Captures work on the current GPU as CUDA graphs that share one workspace.

    Args:
        tries: Whether to try each capture with CUDA's driver first. An error in a capture by Paddle would end
            the process.
    """

    def __init__(self, tries: bool = False) -> None:
        self._tries = tries
        self._workspace: Workspace | None = None

    def __call__(self, work: Callable[[], None]) -> Replayable:
        """Captures ``work``; see `CudaGraph`.

        Raises:
            UserError: The work cannot be captured.
        """
        if self._tries:
            for _ in range(_RUNS_BEFORE_TRIAL):
                work()
            if reason := find_capture_error(work):
                raise UserError(f"the work cannot be captured as a CUDA graph: {reason}")
        if self._workspace is None:
            self._workspace = build_workspace()
        return CudaGraph(work, self._workspace)


class CudaGraph:
    """A CUDA graph of ``work``, or several graphs if the work calls `cut`.

    The constructor captures the work without running it. The graphs keep the memory of the work allocated, so
    the constructor empties Paddle's cache first.

    Args:
        work: Function that only launches kernels and does not read from the device. Its host code runs once,
            during the capture.
        workspace: Workspace of the convolutions.

    Raises:
        UserError: The work cannot be captured.
    """

    def __init__(self, work: Callable[[], None], workspace: Workspace) -> None:
        paddle.device.cuda.synchronize()
        paddle.device.cuda.empty_cache()
        self._parts: list[CUDAGraph] = []
        self._between: list[Callable[[], None]] = []  # called between a part and the next one
        self._workspace = workspace  # must exist as long as the graph can be replayed
        with _capture_flags(), workspace.lent(), _cut_by(self._cut):
            self._begin_part()
            try:
                work()
            except (RuntimeError, OSError, ValueError) as error:
                raise UserError(
                    f"this work cannot be captured as a CUDA graph: {error}; set Global.cuda_graph=False"
                ) from error
            self._parts[-1].capture_end()

    def _begin_part(self) -> None:
        # Without an argument, CUDAGraph uses the GPU that Paddle's launcher sets in the environment.
        number = paddle.device.get_device().partition(":")[2]
        graph = CUDAGraph(paddle.CUDAPlace(int(number)))
        # Paddle's executor keeps tensors in the graph's memory until the process ends. The process would
        # crash at exit if the graph were freed before these tensors.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))
        self._parts.append(graph)
        graph.capture_begin()

    def _cut(self, between: Callable[[], None]) -> None:
        self._parts[-1].capture_end()
        self._between.append(between)
        self._begin_part()

    def replay(self) -> None:
        """Starts the work on the GPU without waiting for it."""
        self._parts[0].replay()
        for between, part in zip(self._between, self._parts[1:], strict=True):
            between()
            part.replay()


@contextmanager
def _capture_flags() -> Iterator[None]:
    """Returns a context with the flags that a capture of compiled models needs.

    With them, Paddle 2.6 can't run programs on the CPU, for example in an export.
    """
    needed = {"FLAGS_new_executor_use_cuda_graph": True, "FLAGS_sync_nccl_allreduce": False}
    before: dict[str, object] = {}
    for name in needed:
        with suppress(ValueError):  # Paddle 3 has only the first flag
            before |= paddle.get_flags(name)
    paddle.set_flags({name: needed[name] for name in before})
    try:
        yield
    finally:
        paddle.set_flags(before)
