"""How much memory a run took at the most, and the error where there was not enough of it."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import paddle

from ppcls.config.schema import Config
from ppcls.engine.core.compiled import measured
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

# Paddle raises MemoryError, for GPU and host alike; CUDA's libraries, through Paddle, OSError without a
# number; and DALI RuntimeError, or MemoryError for the host.
_LACKS = re.compile(r"out of memory|alloc_failed|allocation failed|bad_alloc", re.IGNORECASE)
_OF_GPU = re.compile(r"GPU|CUDA|CUDNN|CUBLAS", re.IGNORECASE)
_ASKED = re.compile(r"Cannot allocate ([\d.]+ ?\w+) memory|Unable to allocate ([\d.]+ \w+)")
_ASKED_BYTES = re.compile(r"Fail to alloc memory of (\d+) size")


@dataclass(frozen=True)
class Peak:
    """The most memory at one time, in MiB.

    Attributes:
        process: Resident, of this process.
        allocated: Of Paddle's tensors on the GPU; None on a CPU.
        reserved: Of Paddle's pool there; None on a CPU.
    """

    process: int
    allocated: int | None = None
    reserved: int | None = None

    def describe(self) -> str:
        """Returns the figures."""
        host = f"this process {self.process} MiB"
        if self.reserved is None:
            return host
        return (
            f"Paddle {self.reserved} MiB of GPU memory, {self.allocated} of it in tensors; "
            f"{host} of the host's"
        )


def peak_memory(runtime: Runtime) -> Peak:
    """Returns the most memory that this process took until now."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if runtime.device == "cpu":
        return Peak(process)
    cuda, gpu = paddle.device.cuda, runtime.device_id
    return Peak(process, cuda.max_memory_allocated(gpu) >> 20, cuda.max_memory_reserved(gpu) >> 20)


@contextmanager
def memory_explained(config: Config, runtime: Runtime) -> Iterator[None]:
    """Makes a `UserError` of an allocation that fails within the block.

    Raises:
        UserError: One did, with the memory's figures and what to change.
    """
    try:
        yield
    except MemoryError as error:
        raise _explain(error, config, runtime) from error
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) is not None or not _LACKS.search(str(error)):
            raise
        raise _explain(error, config, runtime) from error


def _explain(error: Exception, config: Config, runtime: Runtime) -> UserError:
    text = str(error)
    of_gpu = runtime.device == "gpu" and _OF_GPU.search(text) is not None
    used = f"at most so far: {peak_memory(runtime).describe()}"
    if of_gpu and runtime.budget is not None and runtime.card is not None:
        budget, card = runtime.budget, runtime.card
        used += (
            f"; Paddle's share is {budget.share} ({budget.reason}), {card.free()} of {card.total} are free"
        )
    cures = [f"lower {_batch_sizes(config)}, and raise Global.update_freq by the same factor"]
    if of_gpu and (config.AMP is None or not config.AMP.use_amp):
        cures.append("compute in half precision (AMP)")
    wanted = config.Global.cuda_graph
    if of_gpu and (wanted is True or (wanted == "auto" and measured())):
        cures.append("set Global.cuda_graph to False, for a recorded step has memory of its own")
    if of_gpu and runtime.budget is not None:
        by_paddle = isinstance(error, MemoryError)
        cures.append(f"{'raise' if by_paddle else 'lower'} {runtime.budget.setting}")
    where = "GPU memory" if of_gpu else "memory"
    return UserError(f"out of {where}{_asked(text)}; {used}. Cure: {'; or '.join(cures)}")


def _batch_sizes(config: Config) -> str:
    given = {name: split.sampler.batch_setting for name, split in config.used_splits.items()}
    return " or ".join(f"DataLoader.{name}.sampler.{key} ({size})" for name, (key, size) in given.items())


def _asked(text: str) -> str:
    """Returns how much could not be had, where Paddle or numpy say so."""
    if found := _ASKED.search(text):
        return f": {found[1] or found[2]} more could not be had"
    if found := _ASKED_BYTES.search(text):
        return f": {int(found[1]) >> 20} MiB more could not be had"
    return ""
