"""Measures one way of training, in this process or as one of several that train together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import paddle

from ppcls.arch.build import build_model
from ppcls.arch.cost import measure as measure_cost
from ppcls.bench.measure.usage import Meter
from ppcls.bench.train.bare_loop import bare_step
from ppcls.bench.train.synthetic import Synthetic, image_shape
from ppcls.bench.train.task import Task
from ppcls.bench.train.variants import Place
from ppcls.config.objectives.distillation import DistillationModel
from ppcls.config.schema import Config
from ppcls.config.sections.dataset import MultiLabelDataset
from ppcls.config.sections.transform import check_chain
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.engine.core.build import build_state
from ppcls.engine.core.hooks import NO_HOOKS, StepHooks
from ppcls.engine.core.networks import build_network
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import Step
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.execution import choose_step
from ppcls.engine.profiling.data_wait import data_wait
from ppcls.engine.profiling.peak import memory_explained, peak_memory
from ppcls.engine.profiling.phase_timer import PhaseTimer
from ppcls.errors import UserError
from ppcls.report.environment import read_hardware, read_versions
from ppcls.report.step_times import summarize
from ppcls.runtime.start import Runtime, selected_card

_LEAST = 2  # steps that are timed


@dataclass(frozen=True)
class _Subject:
    """What is timed.

    Attributes:
        step: Takes one optimizer update, and tells its phases.
        images: Of an update, on this rank.
        waited: Returns the seconds of waiting for data since it was last asked.
        execution: How steps are executed.
        phases: Whether `step` tells phases.
        release: Lets go of threads and memory.
    """

    step: Callable[[StepHooks], None]
    images: int
    waited: Callable[[], float]
    execution: str
    phases: bool
    release: Callable[[], None]


def look(config: Config, runtime: Runtime) -> dict[str, Any]:
    """Returns what a config trains on, and what its model costs.

    Raises:
        UserError: It does not train.
    """
    split = config.DataLoader.Train
    if split is None:
        raise UserError("training needs DataLoader.Train in the config")
    place = Place(runtime.device, runtime.cores)
    if runtime.device == "gpu":
        cuda = paddle.device.cuda
        gpus, card = cuda.device_count(), cuda.get_device_name(runtime.device_id)
        major, minor = cuda.get_device_capability(runtime.device_id)
        place = Place("gpu", runtime.cores, gpus, card, (major, minor))
    arch, shape = config.Arch.exported, image_shape(config, split)
    cost = rgb = measure_cost(lambda: build_network(config.Arch), shape)
    if arch.input_image_channel != 3:
        three = tuple(3 if each == arch.input_image_channel else each for each in shape)
        rgb = measure_cost(
            lambda: build_model(arch.name, arch.class_num, arch.data_format, 3, **arch.options), three
        )
    return {
        "place": asdict(place),
        "model": arch.name,
        "size": "x".join(map(str, check_chain(split.dataset.transform_ops).size or ())),
        "threads": runtime.threads,
        "machine": read_hardware(runtime),
        "versions": read_versions(),
        "rgb_parameters": rgb.parameters,
        "multiply_adds": None if isinstance(config.Arch, DistillationModel) else cost.flops,
    }


def measure(config: Config, runtime: Runtime, task: Task) -> dict[str, Any]:
    """Measures one way of training, together with all other ranks.

    Args:
        config: That of the task.
        runtime: Rank and device.
        task: What to measure.

    Returns:
        What was found, over all ranks: images a second, seconds, MiB.

    Raises:
        UserError: This can't be trained here: too little memory, no such kernel.
    """
    with memory_explained(config, runtime):
        subject = _bare(config, runtime) if task.source == "bare" else _ours(config, runtime, task.source)
        try:
            found = _timed(task, subject, runtime)
            if subject.phases and task.split_steps:
                found |= _split_if_room(task, subject, config, runtime)
        finally:
            subject.release()
    return found


def _ours(config: Config, runtime: Runtime, source: str) -> _Subject:
    split = config.DataLoader.Train
    loader: Loader | None = None
    if source == "synthetic" and split is not None:
        loader = Synthetic(config, split, runtime)
    state = build_state(config, runtime, lambda _: None, loader)
    state.schedule = lambda _update: 0.0  # so that the weights don't learn a few images by heart
    step, how = choose_step(config, state)
    state.connect(config.Global, overlapping=not isinstance(step, GraphedStep))
    state.network.train()
    batches, wait, order = _endless(state.loader), data_wait(runtime), state.loader.order

    def update(phases: StepHooks) -> None:
        chosen = phases.eager_step if isinstance(phases, PhaseTimer) else step
        for number in range(1, order.accumulate + 1):
            phases.begin_batch()
            with phases("data wait"), wait.waiting():
                batch = next(batches)
            _take(state, chosen, batch, phases, update=number == order.accumulate)
            phases.end_batch(number == order.accumulate)

    def waited() -> float:
        seconds, wait.seconds = wait.seconds, 0.0
        return seconds

    images = order.batch_size * order.accumulate
    return _Subject(update, images, waited, how, phases=True, release=state.loader.release)


def _take(state: TrainState, step: Step, batch: Batch, phases: StepHooks, *, update: bool) -> None:
    """Takes a batch as a full one: a last, smaller one of an epoch has rows enough."""
    order = state.loader.order
    full = replace(batch, update=update, valid=order.batch_size, weight=1 / order.accumulate)
    step(state, full, phases)


def _endless(loader: Loader) -> Iterator[Batch]:
    """Yields batches, epoch after epoch."""
    while True:
        yield from loader


def _bare(config: Config, runtime: Runtime) -> _Subject:
    """Returns Paddle's own loop.

    Raises:
        UserError: It has no way to do what the config asks.
    """
    split, amp = config.DataLoader.Train, config.AMP
    if split is None:
        raise UserError("training needs DataLoader.Train in the config")
    if isinstance(split.dataset, MultiLabelDataset):
        raise UserError("the bare loop is written for images of one class each")
    if config.Global.update_freq > 1:
        raise UserError("the bare loop accumulates no gradients")
    if runtime.device == "cpu" and amp is not None and amp.use_amp:
        raise UserError("on a CPU Paddle's own AMP computes in float32")
    loader = Synthetic(config, split, runtime)
    step = bare_step(config, next(iter(loader)), runtime.world_size)
    return _Subject(
        lambda _: step(),
        loader.order.batch_size,
        lambda: 0.0,
        "steps: operator by operator, Paddle's own loop",
        phases=False,
        release=loader.release,
    )


def _timed(task: Task, subject: _Subject, runtime: Runtime) -> dict[str, Any]:
    """Times whole steps that nobody looks into."""
    seconds = [_seconds(subject, runtime, 1) for _ in range(task.warm_up)]
    (last,) = _over_ranks(runtime, [seconds[-1] if seconds else task.seconds])[0].max(axis=0, keepdims=True)
    steps = task.steps or max(_LEAST, round(task.seconds / float(last)))
    _seconds(subject, runtime, round(task.settle / float(last)))
    meter = Meter(selected_card() if runtime.device == "gpu" else None)
    meter.start()
    metered = time.perf_counter()
    subject.waited()
    _over_ranks(runtime, [0.0])  # all begin together; nothing comes between that takes ranks a different time
    taken = _seconds(subject, runtime, steps)
    metered = time.perf_counter() - metered
    usage = meter.stop()
    peak = peak_memory(runtime)
    of_ranks = _over_ranks(
        runtime,
        [
            taken,
            subject.waited() / taken,
            peak.allocated or 0,
            peak.reserved or 0,
            usage.cpu_seconds / metered,
            peak.process,
            usage.gpu_load or 0.0,
        ],
    )
    slowest, waited, allocated, reserved, *_ = of_ranks.max(axis=0).tolist()
    *_, cores, host, load = of_ranks.sum(axis=0).tolist()
    gpu = {"gpu_allocated": allocated, "gpu_reserved": reserved} if runtime.device == "gpu" else {}
    if usage.gpu_load is not None:
        gpu["gpu_load"] = load / runtime.world_size
    return {
        "images_per_second": subject.images * steps * runtime.world_size / slowest,
        "step": slowest / steps,
        "data_wait": waited,
        "cpu_cores": cores,
        "host_memory": host,
        **gpu,
        "steps": steps,
        "execution": subject.execution,
    }


def _seconds(subject: _Subject, runtime: Runtime, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        subject.step(NO_HOOKS)
    runtime.synchronize()
    return time.perf_counter() - began


def _split_if_room(task: Task, subject: _Subject, config: Config, runtime: Runtime) -> dict[str, Any]:
    """Returns the phases, or why there are none: beside a recorded step, plain ones may find no memory."""
    try:
        with memory_explained(config, runtime):
            return {"phases": _split(task, subject, runtime)}
    except UserError as error:
        return {"no_phases": str(error)}


def _split(task: Task, subject: _Subject, runtime: Runtime) -> dict[str, float]:
    """Returns the seconds of each phase of a step, in the median: rank 0's.

    ``all-reduce`` is what backward takes longer by it, ``all-reduce hidden`` what it would take longer if
    nothing of the exchange ran beside it.
    """
    timer = PhaseTimer(runtime)
    for _ in range(task.split_steps):
        subject.step(timer)
    table = summarize(timer.measured(0, subject.images * runtime.world_size, None))
    phases = {name: row.median_ms / 1e3 for name, row in table.rows.items()}
    if table.all_reduce_alone_ms is not None:
        alone = table.all_reduce_alone_ms / 1e3
        phases["all-reduce hidden"] = max(0.0, alone - phases["all-reduce"])
    return phases


def _over_ranks(runtime: Runtime, values: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns [ranks, values] from the values of each rank; waits for all of them."""
    own = paddle.to_tensor(values, dtype="float64")
    if runtime.world_size == 1:
        return np.asarray(own.numpy())[None]
    gathered: list[paddle.Tensor] = []
    paddle.distributed.all_gather(gathered, own)
    return np.stack([np.asarray(each.numpy()) for each in gathered])
