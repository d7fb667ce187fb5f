"""The loggers: TensorBoard, MLflow, Weights & Biases. Each has its keys in YAML, and builds its tracker.

Their packages are optional, so they are imported when a tracker starts.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import ClassVar, Literal

import psutil

from ppcls.report.trackers import Logger, RunIds, TrackedRun, Tracker, flatten_config, read_config_text

_WANDB_PROCESS = "wandb-core"  # name of the process that sends the records of W&B
_MAX_PARAMETERS = 100  # per request to MLflow


class TensorBoard(Logger):
    """Writes event files for ``tensorboard --logdir``. Needs the package tensorboardX."""

    package: ClassVar[str] = "tensorboardX"
    extra: ClassVar[str] = "loggers"
    blocks: ClassVar[bool] = False  # tensorboardX writes to its file from a thread
    folder: str | None = None
    """Folder of the event files; default: `tensorboard` in `Global.output_dir`."""

    def build(self, run: TrackedRun) -> Tracker:
        """Starts the tracker, and returns it."""
        return TensorBoardTracker(self, run)


class TensorBoardTracker:
    """Writes a new event file for TensorBoard.

    Args:
        spec: Settings of the tracker.
        run: The run. If it is resumed, TensorBoard hides the values of earlier files after the update at
            which the run resumes.
    """

    def __init__(self, spec: TensorBoard, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        first = 0 if run.resumed_from is None else run.resumed_from + 1
        folder = spec.folder or run.output_dir / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=first, filename_suffix=f".{first}")

    def log(self, values: dict[str, float], update: int) -> None:
        """Writes the values to the event file."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, update)
        self._writer.flush()

    def finish(self, failed: bool) -> None:  # noqa: ARG002 - see Tracker
        """Closes the event file."""
        self._writer.close()


class MLflow(Logger):
    """Records the run on an MLflow server. Needs the package mlflow or mlflow-skinny."""

    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"
    tracking_uri: str | None = None
    """Address of the server; default: the value of the environment variable MLFLOW_TRACKING_URI if it is set,
    else MLflow's default."""
    experiment: str = "ppcls"
    """Name of the experiment. It is created if it does not exist."""
    run_name: str | None = None
    """Name of the run; default: architecture and output folder."""

    def build(self, run: TrackedRun) -> Tracker:
        """Starts the tracker, and returns it."""
        return MLflowTracker(self, run)


class MLflowTracker:
    """Logs metrics to a run on an MLflow server, and the config as its parameters.

    Args:
        spec: Settings of the tracker.
        run: The run. If it is resumed, the same run on the server continues.
    """

    def __init__(self, spec: MLflow, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client = MlflowClient(tracking_uri=spec.tracking_uri)
        self._metric = Metric
        ids = RunIds(run)
        known = ids.read(spec.kind)
        if known is not None:
            self._id = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(spec.experiment)
        parent = experiment.experiment_id if experiment else self._client.create_experiment(spec.experiment)
        self._id = self._client.create_run(parent, run_name=spec.run_name or run.name).info.run_id
        ids.write(spec.kind, self._id)
        parameters = [Param(key, value) for key, value in flatten_config(run.config).items()]
        for start in range(0, len(parameters), _MAX_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[start : start + _MAX_PARAMETERS])

    def log(self, values: dict[str, float], update: int) -> None:
        """Logs all values in one request."""
        now = round(time.time() * 1000)
        metrics = [self._metric(tag, value, now, update) for tag, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, failed: bool) -> None:
        """Sets the status of the run on the server."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


class WandB(Logger):
    """Records the run on Weights & Biases. Needs the package wandb."""

    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"
    project: str = "ppcls"
    """Name of the project."""
    entity: str | None = None
    """User or team that owns the project; default: the user who is logged in."""
    run_name: str | None = None
    """Name of the run; default: architecture and output folder."""
    mode: Literal["online", "offline"] | None = None
    """`online` sends the data to the server; `offline` writes the data to `Global.output_dir`, for a later
    `wandb sync`. Default: the value of the environment variable WANDB_MODE if it is set, else `online`."""

    def build(self, run: TrackedRun) -> Tracker:
        """Starts the tracker, and returns it."""
        return WandBTracker(self, run)

    def abandon(self) -> None:
        """Ends the process of W&B, for which W&B would wait without a limit when Python ends.

        What this process has written to `Global.output_dir` remains: `wandb sync` sends it later.
        """
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.name() == _WANDB_PROCESS:
                    child.kill()


class WandBTracker:
    """Logs metrics and the config to a run of Weights & Biases.

    Args:
        spec: Settings of the tracker.
        run: The run. If it is resumed, the same run of Weights & Biases continues.
    """

    def __init__(self, spec: WandB, run: TrackedRun) -> None:
        import wandb

        ids = RunIds(run)
        number = ids.read(spec.kind) or uuid.uuid4().hex[:8]
        self._run = wandb.init(
            project=spec.project,
            entity=spec.entity,
            name=spec.run_name or run.name,
            mode=spec.mode,
            dir=str(run.output_dir),
            id=number,
            resume="allow",
            config=read_config_text(run.config),
        )
        ids.write(spec.kind, number)
        # The step of W&B can only increase, but a resumed run starts at the update of its checkpoint.
        self._run.define_metric("*", step_metric="update")

    def log(self, values: dict[str, float], update: int) -> None:
        """Logs the values, with the update as their step."""
        self._run.log({**values, "update": update})

    def finish(self, failed: bool) -> None:
        """Ends the run of Weights & Biases."""
        self._run.finish(exit_code=int(failed))
