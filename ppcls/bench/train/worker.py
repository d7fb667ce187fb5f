"""Measures one variant of training in this process, or as one of several ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any

import paddle

from ppcls.arch.build import build_model
from ppcls.arch.cost import measure as measure_cost
from ppcls.arch.distillation_model import AnyArch
from ppcls.bench.measure.usage import UsageMeter
from ppcls.bench.train.tasks import TrainTask
from ppcls.bench.train.variants import Inspection
from ppcls.data.section import Split
from ppcls.data.transforms.base import check_chain
from ppcls.engine.autotune.processes import Sample
from ppcls.engine.autotune.timing import TimingPlan, gather, time_updates
from ppcls.engine.autotune.workload import Workload, image_shape
from ppcls.engine.core.networks import build_network
from ppcls.engine.profiling.phase_timer import PhaseTimer
from ppcls.errors import UserError
from ppcls.report.step_times import summarize
from ppcls.report.summary.environment import read_hardware, read_versions
from ppcls.runtime.start import Runtime, selected_card

Guard = Callable[[], AbstractContextManager[None]]


def inspect(model: AnyArch, split: Split, runtime: Runtime) -> dict[str, Any]:
    """Returns the fields of `Inspection`.

    Args:
        model: The section ``Arch``.
        split: ``DataLoader.Train``.
        runtime: Device and cores.
    """
    gpu: dict[str, Any] = {}
    if runtime.device == "gpu":
        cuda = paddle.device.cuda
        number = runtime.device_id
        gpu = {"gpus": cuda.device_count(), "card": cuda.get_device_name(number)}
        gpu["capability"] = cuda.get_device_capability(number)
    arch = model.exported
    shape = image_shape(model.data_format, split)
    cost = rgb = measure_cost(lambda: build_network(model), shape)
    if arch.input_image_channel != 3:
        three = tuple(3 if side == arch.input_image_channel else side for side in shape)
        rgb = measure_cost(
            lambda: build_model(arch.name, arch.class_num, arch.data_format, 3, **arch.options), three
        )
    inspection = Inspection(
        runtime.device,
        runtime.cores,
        runtime.threads,
        machine=read_hardware(runtime),
        versions=read_versions(),
        model=arch.name,
        size="x".join(map(str, check_chain(split.dataset.transform_ops).size or ())),
        rgb_parameters=rgb.parameters,
        multiply_adds=None if model.student else cost.flops,
        **gpu,
    )
    return asdict(inspection)


def measure_workload(
    task: TrainTask, runtime: Runtime, guard: Guard, build: Callable[[], Workload]
) -> Sample:
    """Measures one variant of training, together with all other ranks.

    Args:
        task: Number and duration of the updates.
        runtime: Device and ranks.
        guard: Function that returns a context for work that may need too much memory; see
            `ppcls.engine.profiling.peak_memory.explain_out_of_memory`.
        build: Function that builds the workload.

    Returns:
        A sample over all ranks, with images per second, seconds per step and memory in MiB.

    Raises:
        UserError: The variant cannot be trained, for example because the memory is too small.
    """
    with guard():
        workload = build()
        try:
            sample = _time_updates(task, workload, runtime)
            if workload.has_phases and task.phase_steps:
                sample |= _try_phases(task, workload, runtime, guard)
        finally:
            workload.release()
    return sample


def _time_updates(task: TrainTask, workload: Workload, runtime: Runtime) -> Sample:
    """Returns a sample of complete updates, whose phases are not timed."""
    meter = UsageMeter(selected_card() if runtime.device == "gpu" else None)
    usage: dict[str, float] = {}

    @contextmanager
    def metered() -> Iterator[None]:
        meter.start()
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        usage.update(meter.stop(), seconds=seconds)

    plan = TimingPlan(task.warm_up, task.settle, task.seconds, task.counted)
    sample = time_updates(plan, workload, runtime, metered())
    cores = usage["cpu_seconds"] / usage["seconds"]
    ranks = gather(runtime, cores=cores, load=usage.get("gpu_load", 0.0))
    sample["cpu_cores"] = float(ranks["cores"].sum())
    if "gpu_load" in usage:
        sample["gpu_load"] = float(ranks["load"].mean())
    return sample


def _try_phases(task: TrainTask, workload: Workload, runtime: Runtime, guard: Guard) -> Sample:
    """Returns the duration of the phases, or the reason of a failure.

    Eager steps can fail, because they need memory in addition to that of a CUDA graph.
    """
    try:
        with guard():
            return {"phases": _time_phases(task, workload, runtime)}
    except UserError as error:
        return {"no_phases": str(error)}


def _time_phases(task: TrainTask, workload: Workload, runtime: Runtime) -> dict[str, float]:
    """Returns the median seconds of each phase of a step on rank 0.

    ``all-reduce`` is the time by which the all-reduce prolongs the backward pass. ``all-reduce hidden`` is
    the rest of its duration, in which it overlaps with the backward pass.
    """
    timer = PhaseTimer(runtime)
    for _ in range(task.phase_steps):
        workload.update(timer)
    table = summarize(timer.measured(0, workload.images * runtime.world_size, None))
    phases = {name: row.median_ms / 1e3 for name, row in table.rows.items()}
    if table.all_reduce_alone_ms is not None:
        phases["all-reduce hidden"] = max(0.0, table.all_reduce_alone_ms / 1e3 - phases["all-reduce"])
    return phases
