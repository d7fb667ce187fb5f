"""The GPU's memory, shared between Paddle and DALI: who may take how much, what is needed, what is left.

Pure functions: `ppcls.runtime.start` reads the environment, `ppcls.runtime.hardware` asks the driver.

Paddle's packages allocate as they go (``auto_growth``), and FLAGS_fraction_of_gpu_memory_to_use then does
nothing. Here a fraction becomes flags that hold, whichever allocator there is.
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
CONTEXT = 512  # MiB of a CUDA context, which neither Paddle's nor DALI's pool holds
LIBRARIES = 1024  # MiB of cuDNN, cuBLAS and NCCL once they are used, with their context: 945 on an H200

# Paddle never takes more than this part of what it finds free at once (gpu_info.cc: a reserve of 0.05).
_AT_ONCE = 0.95
_BLOCK = 64 * MIB  # DALI's pool grows by blocks of this size (cuda_vm_resource.h)
_PICTURE = 500 * 375 * 3  # a decoded picture as in ImageNet
_RESIZED_AT_ONCE = 32  # minibatch_size of DALI's resize


@dataclass(frozen=True)
class Asked:
    """What the config and the environment ask for.

    Attributes:
        fraction: Of the card, in (0, 1), for Paddle; None where nobody asks for one.
        setting: What sets it.
        by_default: Whether the fraction is ours rather than the user's.
        unused: Tells of a fraction that gives way to another; empty where none does.
        limit: The user's own FLAGS_gpu_memory_limit_mb, in MiB; None without.
        initial: The user's own FLAGS_initial_gpu_memory_in_mb, in MiB; None without.
        strategy: Paddle's allocator.
    """

    fraction: float | None = None
    setting: str = KEY
    by_default: bool = False
    unused: str = ""
    limit: int | None = None
    initial: int | None = None
    strategy: str = "auto_growth"


def read_asked(fraction: float | None, use_dali: bool, variables: Mapping[str, str]) -> Asked:
    """Reads what is asked for: the config's fraction before the environment's, else 0.8 where DALI runs.

    Args:
        fraction: ``Global.gpu_memory_fraction``.
        use_dali: Whether DALI needs a part of the card.
        variables: The environment.

    Raises:
        UserError: A variable's value means nothing.
    """
    given = _read_fraction(variables)
    asked = Asked(
        limit=_read_mib(variables, LIMIT),
        initial=_read_mib(variables, INITIAL),
        strategy=variables.get(STRATEGY) or "auto_growth",
    )
    if fraction is not None:
        unused = f"{FRACTION}={given:g} is not used" if given not in (None, fraction) else ""
        return replace(asked, fraction=fraction, unused=unused)
    if given is not None:
        return replace(asked, fraction=given, setting=FRACTION)
    if use_dali and asked.limit is None:
        return replace(asked, fraction=DEFAULT_FRACTION, by_default=True)
    return asked


def _read_fraction(variables: Mapping[str, str]) -> float | None:
    text = variables.get(FRACTION, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise _wrong(FRACTION, "a number > 0 and < 1", text)
    return value


def _read_mib(variables: Mapping[str, str], name: str) -> int | None:
    """Returns MiB; None for 0 too, by which Paddle means nothing set."""
    text = variables.get(name, "")
    if text and not (text.isascii() and text.isdecimal()):
        raise _wrong(name, "a whole number of MiB", text)
    return int(text or "0") or None


def _wrong(name: str, expected: str, text: str) -> UserError:
    return UserError(
        f"environment variable {name}: expected {expected}, got '{text}'; "
        f"correct it, or unset it and use {KEY}"
    )


@dataclass(frozen=True)
class Budget:
    """How a card's memory is divided. All sizes in MiB.

    Attributes:
        total: The card's.
        taken: In use before the run began, by the driver and others; 0..total.
        share: The most that Paddle may take; 1..total.
        at_once: What Paddle takes with its first allocation and keeps, 0..share; 0 where it takes memory
            as it goes.
        setting: What to change the share by.
        reason: How the share came about.
    """

    total: int
    taken: int
    share: int
    at_once: int
    setting: str
    reason: str

    @property
    def rest(self) -> int:
        """What is neither taken nor Paddle's: left for DALI and CUDA's libraries."""
        return max(0, self.total - self.taken - self.share)

    def flags(self) -> dict[str, str]:
        """Returns the variables that Paddle must find when it is imported."""
        flags = {LIMIT: str(self.share)}
        if self.at_once:
            flags[INITIAL] = str(self.at_once)
        return flags

    def describe(self) -> str:
        """Returns one line for the log."""
        at_once = f", {self.at_once} of it at once" if self.at_once else ""
        return (
            f"GPU memory: {self.total} MiB, {self.taken} of it in use before; Paddle's share at most "
            f"{self.share}{at_once} ({self.reason}); {self.rest} left for DALI and CUDA's libraries"
        )


def plan(asked: Asked, total: int, free: int) -> Budget | None:
    """Divides a card's memory. Where both a fraction and a limit are set, the smaller one holds.

    Args:
        asked: By config and environment.
        total: Of the card, in MiB, > 0.
        free: Of it at the start, in MiB, 0..total.

    Returns:
        The budget; None where nothing is to be limited.

    Raises:
        UserError: Paddle is to take at once what is not free.
    """
    shares = []
    if asked.fraction is not None:
        by_default = ", by default with DALI" if asked.by_default else ""
        text = f"{asked.setting} {asked.fraction:g}{by_default}"
        shares.append((max(1, int(asked.fraction * total)), asked.setting, text))  # Paddle takes 0 for all
    if asked.limit is not None:
        shares.append((min(asked.limit, total), LIMIT, f"{LIMIT} {asked.limit}"))
    if not shares:
        return None
    (share, setting, text), *larger = sorted(shares)
    others = [f"{text} would be {size}" for size, _, text in larger]
    reason = "; ".join(filter(None, [text, *others, asked.unused]))
    at_once = 0
    if asked.strategy == "naive_best_fit":
        most = int(share * _AT_ONCE)
        at_once = max(1, min(asked.initial or most, most))
        if at_once + CONTEXT > free:
            raise UserError(
                f"{STRATEGY} naive_best_fit takes {at_once} MiB of GPU memory at once ({reason}), beside "
                f"{CONTEXT} for CUDA, but {free} of {total} MiB are free; lower {setting}"
            )
    return Budget(total, total - free, share, at_once, setting, reason)


def pipeline_need(
    batch_size: int,
    prefetch: int,
    shape: tuple[int, int, int],
    threads: int,
    itemsize: int = 4,
    padding: int = 16 * MIB,
    picture: int = _PICTURE,
) -> int:
    """Estimates the GPU memory of one DALI pipeline that decodes, resizes and normalizes, in MiB.

    The sum of

    - ``threads * padding``: nvJPEG's buffers, one a thread;
    - ``2 * batch_size * picture``: decoded pictures, one batch being decoded while one is resized;
    - ``32 * 4 * picture``: the resize's float32 half-way results, at most as many values as a picture has;
    - ``(prefetch + 2) * batch_size * output``: finished batches: those in stock, one in work, and one in
      the training step;

    rounded up to blocks of 64 MiB, by which DALI's pool grows. Pictures much larger than ``picture``
    need more; the measurement after the first epoch shows it.

    Args:
        batch_size: Images of a batch.
        prefetch: Batches made ahead.
        shape: [channels, height, width] of an output image.
        threads: CPU threads of the pipeline.
        itemsize: Bytes of an output value.
        padding: ``device_memory_padding`` of ``fn.decoders.image``; bytes.
        picture: Bytes of a decoded picture; as default 500×375 pixels.
    """
    output = math.prod(shape) * itemsize
    need = (
        threads * padding
        + 2 * batch_size * picture
        + _RESIZED_AT_ONCE * 4 * picture
        + (prefetch + 2) * batch_size * output
    )
    return -(-need // _BLOCK) * _BLOCK // MIB


@dataclass(frozen=True)
class Usage:
    """The memory of a card at one moment, in MiB.

    Attributes:
        free: What nobody has.
        paddle: What Paddle's pool has.
    """

    free: int
    paddle: int


@dataclass(frozen=True)
class Needs:
    """What DALI's pipelines need, in MiB, by name."""

    pipelines: Mapping[str, int]

    @property
    def total(self) -> int:
        """Of all pipelines and of CUDA's libraries."""
        return sum(self.pipelines.values()) + LIBRARIES

    def describe(self) -> str:
        """Returns the parts."""
        parts = [f"{name} {size}" for name, size in self.pipelines.items()]
        return f"{', '.join(parts)}, CUDA's libraries {LIBRARIES}"


def check_room(budget: Budget, needs: Needs, usage: Usage) -> str:
    """Returns the log's line on what DALI needs and what is left for it before the first step.

    Raises:
        UserError: Too little is left.
    """
    left = max(0, usage.free - max(0, budget.share - usage.paddle))
    need = f"about {needs.total} MiB of GPU memory ({needs.describe()})"
    if needs.total > left:
        raise UserError(
            f"DALI needs {need}, but {left} are left: of the GPU's {budget.total} MiB Paddle's share is "
            f"{budget.share} ({budget.reason}), and others use {budget.taken}; "
            f"lower {budget.setting}, or sampler.batch_size in DataLoader.Train and DataLoader.Eval"
        )
    return f"DALI needs {need}; {left} are left"


def describe_use(budget: Budget, needs: Needs, before: Usage, after: Usage) -> str:
    """Returns the log's line on what the pipelines took, once they have run.

    Args:
        budget: The card's.
        needs: As estimated.
        before: Usage before the first step.
        after: Usage now.
    """
    took = (before.free - after.free) - (after.paddle - before.paddle)
    return (
        f"GPU memory in use: Paddle {after.paddle} MiB of its {budget.share}; DALI and CUDA's libraries took "
        f"{took}, estimated {needs.total}; {after.free} free"
    )
