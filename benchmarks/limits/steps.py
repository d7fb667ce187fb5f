"""Trains a model on the batches of several loaders in turn, and measures the threads meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.limits.threads import (
    DECODING,
    EXECUTORS,
    OTHERS,
    TRAINING,
    GroupTime,
    LockProbe,
    compare,
    read_threads,
)
from ppcls.data.build import build_loader
from ppcls.data.loaders.batch import Batch, Loader
from ppcls.data.loaders.section import Dali
from ppcls.engine.autotune.workload import SyntheticLoader
from ppcls.engine.core.build import build_state
from ppcls.engine.core.hooks import NO_HOOKS
from ppcls.engine.execution import connect
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime


@dataclass(frozen=True)
class Figures:
    """What was measured with one loader.

    Attributes:
        images: Number of images.
        updates: Number of updates.
        seconds: Duration.
        waiting: Seconds in which the training thread requested data.
        data_cpu: CPU seconds of the training thread for data.
        step_cpu: CPU seconds of the training thread for steps.
        groups: Times of the groups of threads.
        lock: Median and 99th percentile of the delay of a thread that wakes up, in seconds.
    """

    images: int
    updates: int
    seconds: float
    waiting: float
    data_cpu: float
    step_cpu: float
    groups: Mapping[str, GroupTime]
    lock: tuple[float, float]

    def cells(self) -> list[str]:
        """Returns the cells of the table's row after its name."""
        busy = sum(group.running for group in self.groups.values()) / self.seconds

        def per_image(seconds: float) -> str:
            return f"{seconds / self.images * 1e3:.3f}"

        return [
            f"{self.images / self.seconds:,.0f}",
            f"{busy:.1f}",
            f"{self.waiting / self.seconds:.0%}",
            per_image(self.groups[DECODING].running),
            per_image(self.groups[EXECUTORS].running),
            per_image(self.data_cpu),
            per_image(self.step_cpu),
            per_image(self.groups[OTHERS].running),
            f"{self.groups[TRAINING].waiting / self.updates * 1e3:.2f}",
            f"{self.lock[0] * 1e3:.2f}",
            f"{self.lock[1] * 1e3:.2f}",
        ]


class Steps:
    """The training steps of a config, whose weights do not change.

    Args:
        config: Config of the run.
        runtime: Device and cores.
        warm_up: Number of updates before each measurement.
        seconds: Duration of each measurement.

    Attributes:
        execution: Line about how steps are executed.
    """

    def __init__(self, config: Config, runtime: Runtime, warm_up: int, seconds: float) -> None:
        self._config = config
        self._runtime = runtime
        self._warm_up = warm_up
        self._seconds = seconds
        self._synthetic = SyntheticLoader(
            config.DataLoader.need_train(), config.Arch, runtime, accumulate=config.Global.update_freq
        )
        state = build_state(config, runtime, lambda *_: None, self._synthetic)
        state = replace(state, schedule=lambda _: 0.0)
        self._state, self._step, self.execution = connect(
            state, config.Global, config.Arch, config.DataLoader.need_train()
        )
        self._state.network.train()

    def measure(self, changes: Mapping[str, Any] | None) -> Figures:
        """Returns what was measured with one loader.

        Args:
            changes: Changes of ``DataLoader.Train.loader.dali``; None for one batch on the device.
        """
        loader = self._synthetic if changes is None else self._build(changes)
        try:
            batches = _endless(loader)
            for _ in range(self._warm_up):
                self._update(batches, loader)
            self._runtime.synchronize()
            return self._time(batches, loader)
        finally:
            loader.release()

    def _build(self, changes: Mapping[str, Any]) -> Loader:
        split = self._config.DataLoader.need_train()
        dali = Dali.model_validate({**split.loader.dali.model_dump(), "gpu_share": None, **changes})
        settings = split.loader.model_copy(update={"dali": dali})
        return build_loader(
            split.model_copy(update={"loader": settings}),
            "Train",
            self._runtime,
            self._config.Global,
            self._config.Arch,
            self._config.class_count(training=True),
        )

    def _time(self, batches: Iterator[Batch], loader: Loader) -> Figures:
        updates = 0
        waiting = data = steps = 0.0
        probe = LockProbe()
        before = read_threads()
        start = time.perf_counter()
        while time.perf_counter() - start < self._seconds:
            update = self._update(batches, loader)
            waiting += update[0]
            data += update[1]
            steps += update[2]
            updates += 1
        self._runtime.synchronize()
        seconds = time.perf_counter() - start
        groups = compare(before, read_threads())
        order = loader.order
        images = updates * order.batch_size * order.accumulate
        return Figures(images, updates, seconds, waiting, data, steps, groups, probe.stop())

    def _update(self, batches: Iterator[Batch], loader: Loader) -> tuple[float, float, float]:
        """Trains one update. Returns seconds of waiting for data, and CPU seconds of data and of steps."""
        order = loader.order
        waiting = data = steps = 0.0
        for number in range(1, order.accumulate + 1):
            start, cpu = time.perf_counter(), time.thread_time()
            batch = next(batches)
            waiting += time.perf_counter() - start
            now = time.thread_time()
            data += now - cpu
            full = replace(
                batch,
                update=number == order.accumulate,
                valid=order.batch_size,
                weight=1 / order.accumulate,
            )
            self._step(self._state, full, NO_HOOKS)
            steps += time.thread_time() - now
        return waiting, data, steps


def _endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader
