"""Divides the memory of a GPU between Paddle and DALI, and checks that DALI's share is large enough.

The functions are pure: `ppcls.runtime.start` reads the environment, and `ppcls.runtime.hardware` calls the
driver.

Paddle's packages allocate memory as needed (``auto_growth``). FLAGS_fraction_of_gpu_memory_to_use then has no
effect. This module converts the fraction to flags that limit every allocator of Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ppcls.errors import UserError

MIB = 1 << 20
KEY = "Global.gpu_memory_fraction"
FRACTION = "FLAGS_fraction_of_gpu_memory_to_use"
LIMIT = "FLAGS_gpu_memory_limit_mb"
STRATEGY = "FLAGS_allocator_strategy"
INITIAL = "FLAGS_initial_gpu_memory_in_mb"

DEFAULT_FRACTION = 0.8
CONTEXT = 512  # MiB of a CUDA context, which is part of neither Paddle's nor DALI's pool
LIBRARIES = 1024  # MiB of cuDNN, cuBLAS and NCCL with their context; measured on an H200: 945 MiB

# Paddle's first allocation is at most this share of the free memory, because gpu_info.cc reserves 0.05.
_MAX_INITIAL = 0.95
_BLOCK = 64 * MIB  # DALI's pool grows in blocks of this size (cuda_vm_resource.h)
_DECODED = 500 * 375 * 3  # bytes of a decoded image, as in ImageNet
_RESIZE_MINIBATCH = 32  # minibatch_size of DALI's resize


@dataclass(frozen=True)
class MemoryRequest:
    """Settings of the GPU memory in the config and the environment.

    Attributes:
        fraction: Paddle's share of the GPU memory, in (0, 1); None if not set.
        setting: Key or variable that sets the fraction.
        is_default: Whether the fraction is the default of ppcls and not set by the user.
        ignored: Note for the log about a fraction that has no effect; empty if there is none.
        limit: FLAGS_gpu_memory_limit_mb in MiB; None if not set.
        initial: FLAGS_initial_gpu_memory_in_mb in MiB; None if not set.
        strategy: Paddle's allocator.
    """

    fraction: float | None = None
    setting: str = KEY
    is_default: bool = False
    ignored: str = ""
    limit: int | None = None
    initial: int | None = None
    strategy: str = "auto_growth"

    def describe_unused(self) -> str:
        """Returns a note for a run without a GPU if the user set a share or limit of GPU memory; else ""."""
        settings = [self.setting] if self.fraction is not None and not self.is_default else []
        if self.limit is not None:
            settings.append(LIMIT)
        if not settings:
            return ""
        return f"{' and '.join(settings)} {'has' if len(settings) == 1 else 'have'} no effect without a GPU"


def read_memory_request(
    fraction: float | None, use_dali: bool, variables: Mapping[str, str]
) -> MemoryRequest:
    """Returns the requested division of the GPU memory.

    The fraction is the value of the config, else of the environment, else 0.8 with DALI.

    Args:
        fraction: ``Global.gpu_memory_fraction``.
        use_dali: Whether DALI needs a share of the memory.
        variables: Environment variables.

    Raises:
        UserError: The value of a variable is invalid.
    """
    from_environment = _read_fraction(variables)
    request = MemoryRequest(
        limit=_read_mib(variables, LIMIT),
        initial=_read_mib(variables, INITIAL),
        strategy=variables.get(STRATEGY) or "auto_growth",
    )
    if fraction is not None:
        overridden = from_environment not in (None, fraction)
        ignored = f"{FRACTION}={from_environment:g} is ignored" if overridden else ""
        return replace(request, fraction=fraction, ignored=ignored)
    if from_environment is not None:
        return replace(request, fraction=from_environment, setting=FRACTION)
    if use_dali and request.limit is None:
        return replace(request, fraction=DEFAULT_FRACTION, is_default=True)
    return request


def _read_fraction(variables: Mapping[str, str]) -> float | None:
    text = variables.get(FRACTION, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise _invalid_variable(FRACTION, "a number > 0 and < 1", text)
    return value


def _read_mib(variables: Mapping[str, str], name: str) -> int | None:
    """Returns the value of a variable in MiB; None if it is missing or 0, which Paddle treats as not set."""
    text = variables.get(name, "")
    if text and not (text.isascii() and text.isdecimal()):
        raise _invalid_variable(name, "an integer number of MiB", text)
    return int(text or "0") or None


def _invalid_variable(name: str, expected: str, text: str) -> UserError:
    return UserError(
        f"environment variable {name}: expected {expected}, got '{text}'; "
        f"correct the value, or unset the variable and use {KEY}"
    )


@dataclass(frozen=True)
class MemoryBudget:
    """The division of the memory of a GPU. All sizes are in MiB.

    Attributes:
        total: Memory of the GPU.
        used_before: Memory in use before the run started, 0..total.
        share: Paddle's limit, 1..total.
        initial: Size of Paddle's first allocation, which is never freed, 0..share; 0 if Paddle allocates as
            needed.
        setting: Key or variable that changes the share.
        reason: Reason for the share.
    """

    total: int
    used_before: int
    share: int
    initial: int
    setting: str
    reason: str

    @property
    def rest(self) -> int:
        """Memory that remains for DALI and CUDA's libraries."""
        return max(0, self.total - self.used_before - self.share)

    def flags(self) -> dict[str, str]:
        """Returns the environment variables that must be set when Paddle is imported."""
        flags = {LIMIT: str(self.share)}
        if self.initial:
            flags[INITIAL] = str(self.initial)
        return flags

    def describe(self) -> str:
        """Returns a line for the log about the division."""
        initial = f", {self.initial} MiB of it allocated at the start" if self.initial else ""
        return (
            f"GPU memory: {self.total} MiB, {self.used_before} MiB in use before; "
            f"Paddle's share at most {self.share} MiB{initial} ({self.reason}); "
            f"{self.rest} MiB left for DALI and CUDA's libraries"
        )


def divide_memory(request: MemoryRequest, total: int, free: int) -> MemoryBudget | None:
    """Divides the memory of a GPU. If a fraction and a limit are set, the smaller share applies.

    Args:
        request: Settings of the config and the environment.
        total: Memory of the GPU in MiB, > 0.
        free: Free memory at the start in MiB, 0..total.

    Returns:
        The budget; None if no limit is requested.

    Raises:
        UserError: Paddle's first allocation would not fit into the free memory.
    """
    shares = []
    if request.fraction is not None:
        default = ", the default with DALI" if request.is_default else ""
        text = f"{request.setting} {request.fraction:g}{default}"
        size = max(1, int(request.fraction * total))  # 0 would mean all memory to Paddle
        shares.append((size, request.setting, text))
    if request.limit is not None:
        shares.append((min(request.limit, total), LIMIT, f"{LIMIT} {request.limit}"))
    if not shares:
        return None
    (share, setting, text), *larger = sorted(shares)
    others = [f"{text} would be {size}" for size, _, text in larger]
    reason = "; ".join(filter(None, [text, *others, request.ignored]))
    initial = 0
    if request.strategy == "naive_best_fit":
        most = int(share * _MAX_INITIAL)
        initial = max(1, min(request.initial or most, most))
        if initial + CONTEXT > free:
            raise UserError(
                f"{STRATEGY} naive_best_fit allocates {initial} MiB of GPU memory at the start ({reason}), "
                f"and CUDA needs {CONTEXT} MiB, but only {free} of {total} MiB are free; lower {setting}"
            )
    return MemoryBudget(total, total - free, share, initial, setting, reason)


def estimate_pipeline_memory(
    batch_size: int,
    prefetch: int,
    shape: tuple[int, int, int],
    threads: int,
    itemsize: int = 4,
    padding: int = 16 * MIB,
) -> int:
    """Estimates the GPU memory of a DALI pipeline that decodes, resizes and normalizes images, in MiB.

    The estimate is the sum of these parts, rounded up to the blocks of 64 MiB in which DALI's pool grows:

    - ``threads * padding``: nvJPEG's buffers, one per thread.
    - ``2 * batch_size * decoded``: decoded images. One batch is decoded while another batch is resized.
    - ``32 * 4 * decoded``: float32 intermediate results of resizing, with at most as many values as a decoded
      image.
    - ``(prefetch + 2) * batch_size * output``: finished batches: the prefetched batches, one batch in
      progress, and one batch in the training step.

    The estimate assumes stored images of 500×375 pixels. Much larger images need more memory. The log shows
    the actual memory use after the first epoch.

    Args:
        batch_size: Number of images per batch.
        prefetch: Number of prefetched batches.
        shape: [channels, height, width] of an output image.
        threads: Number of CPU threads of the pipeline.
        itemsize: Bytes per output value.
        padding: ``device_memory_padding`` of ``fn.decoders.image`` in bytes.
    """
    need = (
        threads * padding
        + 2 * batch_size * _DECODED
        + _RESIZE_MINIBATCH * 4 * _DECODED
        + (prefetch + 2) * batch_size * math.prod(shape) * itemsize
    )
    return -(-need // _BLOCK) * _BLOCK // MIB


@dataclass(frozen=True)
class MemoryUsage:
    """The memory of a GPU at one moment, in MiB.

    Attributes:
        free: Memory that no process uses.
        paddle: Size of Paddle's pool.
    """

    free: int
    paddle: int


@dataclass(frozen=True)
class MemoryNeeds:
    """Estimated memory needs of DALI.

    Attributes:
        pipelines: Memory of each pipeline in MiB, keyed by name.
    """

    pipelines: Mapping[str, int]

    @property
    def total(self) -> int:
        """Memory of all pipelines and of CUDA's libraries in MiB."""
        return sum(self.pipelines.values()) + LIBRARIES

    def describe(self) -> str:
        """Returns the parts of the total as text."""
        parts = [f"{name} {size}" for name, size in self.pipelines.items()]
        return f"{', '.join(parts)}, CUDA's libraries {LIBRARIES}"


def check_dali_memory(budget: MemoryBudget, needs: MemoryNeeds, usage: MemoryUsage) -> str:
    """Checks before the first step that enough GPU memory is left for DALI.

    Args:
        budget: Division of the memory.
        needs: Estimated needs.
        usage: Current usage.

    Returns:
        A line for the log about the needed and the remaining memory.

    Raises:
        UserError: Less memory is left than DALI needs.
    """
    left = max(0, usage.free - max(0, budget.share - usage.paddle))
    need = f"about {needs.total} MiB of GPU memory ({needs.describe()})"
    if needs.total > left:
        raise UserError(
            f"DALI needs {need}, but only {left} MiB are left. Of the GPU's {budget.total} MiB, Paddle's "
            f"share is {budget.share} MiB ({budget.reason}), and {budget.used_before} MiB were already in "
            f"use. Lower {budget.setting}, or sampler.batch_size in DataLoader.Train and DataLoader.Eval"
        )
    return f"DALI needs {need}; {left} MiB are left"


def describe_memory_use(
    budget: MemoryBudget, needs: MemoryNeeds, before: MemoryUsage, after: MemoryUsage
) -> str:
    """Returns a line for the log about the memory that the pipelines actually use.

    Args:
        budget: Division of the memory.
        needs: Estimated needs.
        before: Usage before the first step.
        after: Current usage, after all pipelines have run.
    """
    used = (before.free - after.free) - (after.paddle - before.paddle)
    return (
        f"GPU memory in use: Paddle {after.paddle} MiB of its {budget.share} MiB; DALI and CUDA's libraries "
        f"{used} MiB, estimated {needs.total} MiB; {after.free} MiB free"
    )
