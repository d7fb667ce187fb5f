"""Applies what `ppcls.engine.autotune.autotune` measured before a run, which configs of checkpoints contain.

Decisions:
- The section ``Global.autotuned`` is ignored on another model of CPU or GPU, where other ways may be faster.
- The number of threads is not written to ``Global.cpu_threads``: predictions would then need it, too, also on
  machines with fewer cores, and in processes that have imported Paddle with another number.
"""

from __future__ import annotations

from typing import Literal, TypeGuard

from ppcls.engine.core.settings import Autotuned, ExecutionSettings
from ppcls.runtime.hardware import read_cpu_model
from ppcls.runtime.paddle_import import omp_threads
from ppcls.runtime.settings import RuntimeSettings


def training_settings(settings: RuntimeSettings, record: Autotuned | None) -> RuntimeSettings:
    """Returns the settings of the process that trains, with the number of threads that was measured.

    The number is not used if OMP_NUM_THREADS or ``Global.cpu_threads`` sets another one.

    Args:
        settings: Settings of the process.
        record: What was measured; None if nothing was.
    """
    if not _fits(record) or settings.cpu_threads is not None or omp_threads() not in (None, record.threads):
        return settings
    return settings.model_copy(update={"cpu_threads": record.threads})


def choose_inference(
    settings: ExecutionSettings,
) -> tuple[Literal["auto", True, False], Literal["NCHW", "NHWC"] | None]:
    """Returns whether predictions on a CPU use the fused kernels, and in which layout Paddle's are faster.

    The layout is None if it was not measured.
    """
    record = settings.autotuned
    if not _fits(record):
        return settings.fused_kernels, None
    return ("auto" if record.fused_kernels else False), record.data_format


def _fits(record: Autotuned | None) -> TypeGuard[Autotuned]:
    """Returns whether something was measured on a CPU of the same model."""
    return record is not None and record.machine == read_cpu_model()
