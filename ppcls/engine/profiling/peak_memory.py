"""Measures the peak memory of a run, and explains errors when memory runs out."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import paddle

from ppcls.data.section import Split
from ppcls.engine.core.compiled import measured
from ppcls.engine.core.settings import AMP, ExecutionSettings
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

# Paddle raises MemoryError for GPU and host. CUDA libraries that Paddle calls raise OSError without an errno,
# and DALI raises RuntimeError, or MemoryError for the host.
_OUT_OF_MEMORY = re.compile(r"out of memory|alloc_failed|allocation failed|bad_alloc", re.IGNORECASE)
_GPU = re.compile(r"GPU|CUDA|CUDNN|CUBLAS", re.IGNORECASE)
_REQUESTED = re.compile(r"Cannot allocate ([\d.]+ ?\w+) memory|Unable to allocate ([\d.]+ \w+)")
_REQUESTED_BYTES = re.compile(r"Fail to alloc memory of (\d+) size")


@dataclass(frozen=True)
class PeakMemory:
    """The highest memory use of this process so far, in MiB.

    Attributes:
        process: Resident host memory.
        allocated: GPU memory of Paddle's tensors; None on a CPU.
        reserved: GPU memory that Paddle's allocator reserved; None on a CPU.
    """

    process: int
    allocated: int | None = None
    reserved: int | None = None

    def describe(self) -> str:
        """Returns the values as text for the log."""
        host = f"this process {self.process} MiB"
        if self.reserved is None:
            return host
        return (
            f"Paddle {self.reserved} MiB of GPU memory ({self.allocated} MiB in tensors), "
            f"{host} of host memory"
        )


def peak_memory(runtime: Runtime) -> PeakMemory:
    """Returns the peak memory of this process."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if runtime.device == "cpu":
        return PeakMemory(process)
    cuda = paddle.device.cuda
    gpu = runtime.device_id
    return PeakMemory(process, cuda.max_memory_allocated(gpu) >> 20, cuda.max_memory_reserved(gpu) >> 20)


@contextmanager
def explain_out_of_memory(
    runtime: Runtime, splits: Mapping[str, Split], settings: ExecutionSettings, amp: AMP | None
) -> Iterator[None]:
    """Returns a context that converts a failed allocation to a `UserError` with memory sizes and advice.

    Args:
        splits: Data sets that the run reads, by their keys in ``DataLoader``.
        settings: How steps are executed.
        amp: Settings of mixed precision; None without mixed precision.

    Raises:
        UserError: An allocation failed.
    """
    try:
        yield
    except MemoryError as error:
        raise _explain(error, runtime, splits, settings, amp) from error
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) is not None or not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise _explain(error, runtime, splits, settings, amp) from error


def _explain(
    error: Exception,
    runtime: Runtime,
    splits: Mapping[str, Split],
    settings: ExecutionSettings,
    amp: AMP | None,
) -> UserError:
    text = str(error)
    on_gpu = runtime.device == "gpu" and _GPU.search(text) is not None
    used = f"peak so far: {peak_memory(runtime).describe()}"
    if on_gpu and runtime.budget is not None and runtime.card is not None:
        budget = runtime.budget
        card = runtime.card
        used += f"; Paddle may use {budget.share} ({budget.reason}), {card.free()} of {card.total} are free"
    sizes = [(name, *split.sampler.batch_setting) for name, split in splits.items()]
    keys = " or ".join(f"DataLoader.{name}.sampler.{key} ({size})" for name, key, size in sizes)
    fixes = [f"lower {keys} and raise Global.update_freq by the same factor"]
    if not settings.recompute:
        fixes.append("set Global.recompute to True, which needs more time but less memory")
    if on_gpu and (amp is None or not amp.use_amp):
        fixes.append("compute in half precision (AMP)")
    graph = settings.cuda_graph
    if on_gpu and (graph is True or (graph == "auto" and measured())):
        fixes.append("set Global.cuda_graph to False, since a CUDA graph needs additional memory")
    if on_gpu and runtime.budget is not None:
        by_paddle = isinstance(error, MemoryError)
        fixes.append(f"{'raise' if by_paddle else 'lower'} {runtime.budget.setting}")
    where = "GPU memory" if on_gpu else "memory"
    return UserError(f"out of {where}{_requested(text)}; {used}. To fix: {'; or '.join(fixes)}")


def _requested(text: str) -> str:
    """Returns the size of the failed allocation as text; empty if the error message does not contain it."""
    if match := _REQUESTED.search(text):
        return f": could not allocate {match[1] or match[2]} more"
    if match := _REQUESTED_BYTES.search(text):
        return f": could not allocate {int(match[1]) >> 20} MiB more"
    return ""
