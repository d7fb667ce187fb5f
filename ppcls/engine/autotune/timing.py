"""Times the updates of a workload, together with all other ranks, and its inference on one rank."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.engine.autotune.processes import Sample
from ppcls.engine.autotune.workload import Workload
from ppcls.engine.profiling.peak_memory import peak_memory
from ppcls.runtime.collectives import all_gather
from ppcls.runtime.start import Runtime

_MIN_STEPS = 2  # smallest number of measured updates, however slow they are
_INFERENCE_SECONDS = 1.0  # longest duration of the measured inference, if one batch takes less


@dataclass(frozen=True)
class TimingPlan:
    """Number and duration of the updates of one measurement.

    Attributes:
        warm_up: Number of updates before the measurement, in which kernels are chosen and graphs are
            captured.
        settle: Seconds of further updates before the measurement, in which the device's clock becomes stable.
        seconds: Approximate duration of the measurement in seconds.
        steps: Number of measured updates; None to measure for ``seconds``.
    """

    warm_up: int
    settle: float
    seconds: float
    steps: int | None = None


def time_updates(
    plan: TimingPlan,
    workload: Workload,
    runtime: Runtime,
    observe: AbstractContextManager[Any] | None = None,
) -> Sample:
    """Returns a sample over all ranks, with images per second, seconds per step, losses and memory in MiB.

    Args:
        plan: Number and duration of the updates.
        workload: Work that this rank repeats.
        runtime: Device and ranks.
        observe: Context in which the measured updates run, for example one that measures the CPU time.
    """
    durations = [run_updates(workload, runtime, 1) for _ in range(plan.warm_up)]
    last = gather(runtime, last=durations[-1] if durations else plan.seconds)["last"].max()
    steps = plan.steps or max(_MIN_STEPS, round(plan.seconds / last))
    run_updates(workload, runtime, round(plan.settle / last))
    workload.take_wait()
    with observe or nullcontext():
        gather(runtime, barrier=0.0)  # all ranks start together
        duration = run_updates(workload, runtime, steps)
    wait = workload.take_wait() / duration
    peak = peak_memory(runtime)
    ranks = gather(
        runtime,
        duration=duration,
        wait=wait,
        host=peak.process,
        allocated=peak.allocated or 0,
        reserved=peak.reserved or 0,
    )
    slowest = float(ranks["duration"].max())
    sample = {
        "images_per_second": workload.images * steps * runtime.world_size / slowest,
        "step": slowest / steps,
        "data_wait": float(ranks["wait"].max()),
        "host_memory": float(ranks["host"].sum()),
        "steps": steps,
        "execution": workload.execution,
        "losses": [float(loss) for loss in workload.losses],
    }
    if runtime.device == "gpu":
        sample |= {f"gpu_{name}": float(ranks[name].max()) for name in ("allocated", "reserved")}
    return sample


def time_inference(plan: TimingPlan, workload: Workload, runtime: Runtime, seconds: float) -> float:
    """Returns the images per second of evaluation batches on this rank. Must be called after all updates.

    Args:
        plan: Number of batches before the measurement.
        workload: Work with inference.
        runtime: Device.
        seconds: Approximate duration of the measurement, which is at most one second.
    """
    infer = workload.infer
    assert infer is not None

    def run(batches: int) -> tuple[int, float]:
        began = time.perf_counter()
        images = infer(batches)
        runtime.synchronize()
        return images, time.perf_counter() - began

    run(plan.warm_up)
    _, last = run(1)
    images, duration = run(max(1, round(min(seconds, _INFERENCE_SECONDS) / last)))
    return images / duration


def run_updates(workload: Workload, runtime: Runtime, updates: int) -> float:
    """Runs updates, and returns their duration in seconds."""
    began = time.perf_counter()
    for _ in range(updates):
        workload.update(None)
    runtime.synchronize()  # the device may still compute when the last update returns
    return time.perf_counter() - began


def gather(runtime: Runtime, **values: float) -> dict[str, NDArray[np.float64]]:
    """Waits for all ranks, and returns the values of all ranks by name, [world size] each."""
    ranks = all_gather(np.array([*values.values()], np.float64), runtime.world_size)
    return dict(zip(values, np.stack(ranks).T, strict=True))
