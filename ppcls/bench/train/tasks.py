"""Tasks of the processes that measure training: one task per candidate, and one to inspect the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ppcls.bench.measure.runner import Candidate, Effort
from ppcls.bench.train.variants import Inspection, Variant, find_obstacle
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess, Sample, worker_command
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

WORKER = Path(__file__).resolve().parents[1] / "worker.py"
_INSPECT_SECONDS = 300.0  # timeout of the process that inspects the machine


@dataclass(frozen=True, kw_only=True)
class TrainTask(Effort):
    """Task of one process that measures training.

    Attributes:
        config: Path of the config.
        overrides: Overrides of the config.
        source: ``synthetic`` for one random batch, or ``loader`` for the config's data.
        settle: Seconds of updates before the measurement, in which the device's clock becomes stable.
        phase_steps: Number of updates after the measurement in which each phase is timed.
    """

    config: str
    overrides: Sequence[str] = ()
    source: str = "synthetic"
    settle: float = 0.0
    phase_steps: int = 4


def inspect_machine(config: Path, overrides: Sequence[str]) -> Inspection:
    """Inspects machine and model in a separate process, so that this process does not occupy a GPU.

    Raises:
        UserError: The config cannot be trained on this machine.
    """
    task = {"config": str(config), "overrides": list(overrides)}
    facts = MeasuringProcess(worker_command(WORKER, "inspect"), task, _INSPECT_SECONDS).run()
    return Inspection(**{**facts, "capability": tuple(facts["capability"])})


def make_candidate(
    variant: Variant, inspection: Inspection, make_process: Callable[[Variant], MeasuringProcess]
) -> Candidate[Variant]:
    """Returns a candidate that measures a variant in the process that ``make_process`` returns."""

    def measure() -> Sample:
        if obstacle := find_obstacle(variant, inspection):
            raise MeasurementFailed(obstacle)
        return make_process(variant).run()

    labels = {"model": inspection.model, "image": inspection.size, **variant.labels()}
    return Candidate(variant, variant.describe(), measure, labels)


def make_candidates(
    variants: Sequence[Variant],
    task: TrainTask,
    inspection: Inspection,
    base: Variant,
    worker: Path = WORKER,
) -> list[Candidate[Variant]]:
    """Returns candidates that measure the training of variants of a config.

    Args:
        variants: Variants to measure.
        task: Task of all variants.
        inspection: Facts about the machine.
        base: Variant that the config trains without overrides.
        worker: Script that measures, with the command line of `ppcls.bench.worker`.
    """

    def make_process(variant: Variant) -> MeasuringProcess:
        overrides = [*task.overrides, *variant.overrides(base), f"Global.device={inspection.device}"]
        try:
            load_config(task.config, overrides)
        except UserError as error:
            raise MeasurementFailed(str(error)) from None
        changes = {"overrides": overrides, "source": variant.source, "settle": inspection.settle_seconds}
        command = worker_command(worker, "train", processes=variant.processes)
        environment = variant.environment()
        if inspection.device == "cpu":
            # Paddle's launcher would look for one GPU per process in this variable, even if it is empty.
            environment["CUDA_VISIBLE_DEVICES"] = None
        return MeasuringProcess(command, asdict(task) | changes, task.timeout, environment)

    return [make_candidate(variant, inspection, make_process) for variant in variants]
