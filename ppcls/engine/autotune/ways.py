"""Measures ways to execute training steps, and chooses the fastest one whose losses are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from ppcls.arch.distillation_model import AnyArch
from ppcls.config.base.section import Section
from ppcls.engine.autotune.processes import MeasurementFailed, Sample
from ppcls.engine.core.settings import Autotuned, EngineSettings
from ppcls.errors import counted
from ppcls.files import print_error
from ppcls.runtime.launch import read_launch

_NOISE_MARGIN = 10.0  # largest accepted difference of the losses, relative to the effect of `_NOISE`
_MEMORY_SHARE = 0.8  # share of the GPU's memory that steps may use; the rest is for images and evaluation
# A setting is used if its speed, relative to the best way so far, is above this value. A CUDA graph may be
# slightly slower here: during a run, the host has other work, which slows down steps without a CUDA graph.
_USED_FROM = {
    "cuda_graph": 0.98,
    "data_format": 1.02,
    "to_static": 1.02,
    "fused_kernels": 1.02,
    "threads": 1.02,
}
_INFERENCE_FROM = 1.02  # predictions use another way than training if its speed is this many times as high
# The settings in the order of measurement, and the values that are measured. The fused kernels need NHWC, and
# cannot be combined with compilation.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "cuda_graph": {"cuda_graph": True},
    "data_format": {"data_format": "NHWC"},
    "to_static": {"to_static": True},
    "fused_kernels": {"fused_kernels": True, "data_format": "NHWC", "to_static": False},
}


@dataclass(frozen=True)
class Execution:
    """A way to execute training steps.

    Attributes:
        data_format: Layout of images and activations: ``NCHW`` or ``NHWC``.
        cuda_graph: Whether steps are replayed as a CUDA graph.
        to_static: Whether the model is compiled.
        fused_kernels: Whether the model uses the fused kernels.
        threads: Number of CPU threads of Paddle; None for that of the config.
    """

    data_format: str = "NCHW"
    cuda_graph: bool = False
    to_static: bool = False
    fused_kernels: bool = False
    threads: int | None = None

    def __str__(self) -> str:
        """Returns a description of the settings, such as ``NHWC, compiled, CUDA graph``."""
        steps = "CUDA graph" if self.cuda_graph else "operator by operator"
        model = "fused kernels, " if self.fused_kernels else "compiled, " if self.to_static else ""
        threads = "" if self.threads is None else f", {counted(self.threads, 'thread')}"
        return f"{self.data_format}, {model}{steps}{threads}"

    def sections(self, settings: EngineSettings, arch: AnyArch) -> dict[str, Section]:
        """Returns copies of the sections ``Global`` and ``Arch`` with these settings, by name."""
        values = {name: getattr(self, name) for name in ("cuda_graph", "to_static", "fused_kernels")}
        if self.threads is not None:
            values["cpu_threads"] = self.threads
        return {
            "Global": settings.model_copy(update=values),
            "Arch": arch.with_data_format(self.data_format),  # type: ignore[arg-type]
        }

    def recorded_sections(
        self, settings: EngineSettings, arch: AnyArch, record: Autotuned | None
    ) -> dict[str, Section]:
        """Returns `sections` of a run, in which ``Global.autotuned`` has the number of threads.

        Args:
            record: What was measured; None if this is unknown.
        """
        recorded = settings.model_copy(update={"autotuned": record})
        return replace(self, threads=None).sections(recorded, arch)


Measure = Callable[[Execution, float], Sample]  # arguments: the way, and the noise that is added to pixels


@dataclass(frozen=True)
class FastestWay:
    """The fastest way to execute a run, and what was measured.

    Attributes:
        execution: Fastest way for training and evaluations together.
        training: Images per second of training, by each way that was accepted.
        inference: Images per second of evaluation, by those of the same ways that could be measured.
    """

    execution: Execution
    training: dict[Execution, float]
    inference: dict[Execution, float]

    def record(self, machine: str) -> Autotuned:
        """Returns the section of the config for this choice.

        Args:
            machine: Model of the GPU or CPU.
        """
        # Predictions have their own number of threads.
        own = replace(self.execution, threads=None)
        rates = {way: rate for way, rate in self.inference.items() if way.threads is None}
        fastest = max(rates, key=rates.__getitem__, default=own)
        if rates.get(own) and rates[fastest] < _INFERENCE_FROM * rates[own]:
            fastest = own
        return Autotuned(
            machine=machine,
            images_per_second={str(way): rate for way, rate in self.training.items()},
            inference_images_per_second={str(way): rate for way, rate in self.inference.items()},
            data_format=fastest.data_format,
            fused_kernels=fastest.fused_kernels,
            threads=self.execution.threads,
        )


@dataclass(frozen=True)
class Criteria:
    """How ways to execute steps are compared.

    Attributes:
        tolerance: Largest relative difference of a loss from the reference.
        memory: Memory of the GPU in MiB; None on a CPU.
        noise: Largest change of a pixel that shows how much rounding changes the losses; None to accept only
            differences within the tolerance.
        evaluated: Number of images that the evaluations of the run process per training image.
    """

    tolerance: float
    memory: int | None
    noise: float | None = None
    evaluated: float = 0.0


def choose(
    first: Execution,
    open_settings: Sequence[str],
    measure: Measure,
    criteria: Criteria,
    threads: Sequence[int] = (),
) -> FastestWay:
    """Returns the fastest way to execute a run, and the images per second of all valid ways.

    The settings are measured one after another, each in combination with the best values so far.

    Args:
        first: Way to measure first, whose losses are the reference.
        open_settings: Settings to choose.
        measure: Function that measures a way. It raises `MeasurementFailed` if the way does not work.
        criteria: How the ways are compared.
        threads: Numbers of CPU threads to measure with the best settings, in addition to the default.
    """
    best = first
    steps: list[tuple[str, Mapping[str, Any]]] = [("", {})]
    steps += [(name, values) for name, values in WAYS.items() if name in open_settings]
    steps += [("threads", {"threads": count}) for count in threads]
    log(
        f"measuring {counted(len(steps), 'way')} to execute training steps, once for this model, "
        "batch and machine (Global.autotune=False skips this)"
    )
    reference: _Reference | None = None
    training: dict[Execution, float] = {}
    inference: dict[Execution, float] = {}
    speeds: dict[Execution, float] = {}
    for name, values in steps:
        way = replace(best, **values)
        try:
            sample = measure(way, 0.0)
            if reference is None:
                disturb = None if criteria.noise is None else partial(measure, way, criteria.noise)
                reference = _Reference(sample["losses"], criteria.tolerance, disturb)
            reference.check(sample)
            _check_memory(sample, criteria.memory)
        except MeasurementFailed as error:
            log(f"  {way}: skipped: {error}")
            continue
        training[way] = rate = sample["images_per_second"]
        line = f"  {way}: {rate:,.0f} images/s, {sample['step'] * 1e3:.1f} ms per step"
        evaluation = sample.get("inference_images_per_second")
        if evaluation is None:
            log(f"{line}; evaluation not measured: {sample['inference_error']}")
            evaluation = rate  # slower than evaluations usually are
        else:
            log(f"{line}, evaluation {evaluation:,.0f} images/s")
            inference[way] = evaluation
        speeds[way] = 1 / (1 / rate + criteria.evaluated / evaluation)
        if not name or speeds[way] > _USED_FROM[name] * speeds.get(best, 0.0):
            best = way
    return FastestWay(best, training, inference)


@dataclass
class _Reference:
    """The losses of the first way, with which those of other ways are compared.

    Attributes:
        losses: Losses of the first updates.
        tolerance: Largest relative difference of a loss.
        disturb: Function that measures the same way with slightly other images; None to accept no further
            differences.
    """

    losses: list[float]
    tolerance: float
    disturb: Callable[[], Sample] | None

    def check(self, sample: Sample) -> None:
        """Checks the losses of a way to execute steps."""
        losses = sample["losses"]
        limits = [0.0] * len(self.losses)
        if self._find_difference(losses, limits) and self.disturb is not None:
            limits = self._rounding_limits
        if (update := self._find_difference(losses, limits)) is not None:
            loss, expected = losses[update - 1], self.losses[update - 1]
            raise MeasurementFailed(f"the loss of update {update} is {loss:.4g}, expected {expected:.4g}")

    def _find_difference(self, losses: list[float], limits: list[float]) -> int | None:
        """Returns the number of the first update whose losses differ by more than allowed."""
        for update, values in enumerate(zip(losses, self.losses, limits, strict=True), start=1):
            loss, expected, limit = values
            if not math.isclose(loss, expected, rel_tol=self.tolerance, abs_tol=limit):
                return update
        return None

    @cached_property
    def _rounding_limits(self) -> list[float]:
        """Differences that rounding can cause: several times the effect of the disturbance so far."""
        assert self.disturb is not None
        limits = [0.0]
        for loss, expected in zip(self.disturb()["losses"], self.losses, strict=True):
            limit = _NOISE_MARGIN * abs(loss - expected)
            limits.append(max(limits[-1], limit) if math.isfinite(limit) else limits[-1])
        return limits[1:]


def _check_memory(sample: Sample, memory: int | None) -> None:
    """Checks the memory that a way to execute steps needs."""
    used = sample.get("gpu_reserved", 0.0)
    if memory is not None and used > _MEMORY_SHARE * memory:
        raise MeasurementFailed(f"it needs {used:,.0f} MiB of the GPU's {memory:,} MiB")


def log(text: str) -> None:
    """Prints a line on rank 0."""
    if read_launch().rank == 0:
        print_error(f"autotune: {text}")
