"""Sends records to experiment trackers: TensorBoard, MLflow, Weights & Biases.

Their packages are optional. Each tracker runs in a separate thread, so a slow or unreachable server neither
delays nor ends the run.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ppcls.config.base.tree import leaves
from ppcls.config.base.yaml import parse_yaml
from ppcls.config.sections.logger import LoggerSpec, MLflow, TensorBoard, WandB
from ppcls.errors import UserError
from ppcls.files import print_error, write_text
from ppcls.report.record import EvalRecord, Record, Reporter
from ppcls.report.visualdl import scalars

RUN_IDS = "loggers.json"
_MAX_WAITING = 10_000  # maximum number of records in the queue; further records are dropped
_CLOSE_SECONDS = 60.0
# parameters per request to MLflow; characters per value
_MAX_PARAMETERS = 100
_MAX_LENGTH = 500
_LIBRARIES = {
    TensorBoard: ("tensorboardX", "loggers"),
    MLflow: ("mlflow", "mlflow"),
    WandB: ("wandb", "wandb"),
}


@dataclass(frozen=True)
class TrackedRun:
    """Properties of a run that trackers use.

    Attributes:
        name: Name of the run.
        output_dir: Output folder of the run.
        config: The config as YAML text.
        resumed_from: Number of optimizer updates at which the run resumes; None for a new run.
    """

    name: str
    output_dir: Path
    config: str = ""
    resumed_from: int | None = None


class Tracker(Protocol):
    """Interface of experiment trackers. An exception in a method stops only the tracker, not the run."""

    def log(self, values: dict[str, float], update: int) -> None:
        """Sends finite values.

        Args:
            values: Values, keyed by tag, such as ``train/loss``.
            update: Number of optimizer updates.
        """

    def finish(self, failed: bool) -> None:
        """Ends the log.

        Args:
            failed: Whether the run ended with an error.
        """


class BackgroundLogger(Reporter):
    """Sends records to a tracker from a separate thread. A failure is reported once on standard error.

    Args:
        name: Name of the tracker for messages.
        start: Function that starts the tracker. It is called in the thread.
    """

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._start = start
        self._queue: queue.Queue[Record | bool] = queue.Queue(_MAX_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"logger {name}", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Queues a record. Drops it if the tracker has failed or the queue is full."""
        if isinstance(record, EvalRecord):
            record = replace(record, outcomes=None)
        if self._thread.is_alive() and not self._queue.full():
            self._queue.put(record)

    def close(self) -> None:
        """Waits until the tracker has received all records, for at most 60 seconds."""
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + _CLOSE_SECONDS
        failed = sys.exc_info()[0] is not None  # close is called while the error of the run propagates
        while self._thread.is_alive() and time.monotonic() < end:
            try:
                self._queue.put(failed, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._report(f"did not finish within {_CLOSE_SECONDS:.0f} s; its log may be incomplete")

    def _run(self) -> None:
        try:
            tracker = self._start()
            while not isinstance(item := self._queue.get(), bool):
                tracker.log(scalars(item), item.update)
            tracker.finish(failed=item)
        except Exception as error:  # noqa: BLE001 - a tracker must never end a run
            reason = " ".join(str(error).split()) or type(error).__name__
            self._report(f"{reason}; the run continues without this logger")

    def _report(self, text: str) -> None:
        print_error(f"Global.loggers: {self._name}: {text}")


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


class RunIds:
    """File with the ids of a run in trackers. A resumed run uses it to continue the same runs.

    Args:
        run: The run. For a new run, existing ids are ignored.
    """

    _lock = threading.Lock()  # one thread per tracker

    def __init__(self, run: TrackedRun) -> None:
        self._path = run.output_dir / RUN_IDS
        self._resumed = run.resumed_from is not None

    def read(self, kind: str) -> str | None:
        """Returns the id of the run in a tracker; None if the run is new or has no id."""
        with self._lock:
            return self._load().get(kind) if self._resumed else None

    def write(self, kind: str, name: str) -> None:
        """Stores the id of the run in a tracker."""
        with self._lock:
            write_text(self._path, json.dumps({**self._load(), kind: name}) + "\n")

    def _load(self) -> dict[str, str]:
        try:
            ids = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return ids if isinstance(ids, dict) else {}


def read_config_text(config: str) -> dict[str, Any]:
    """Returns the values of a YAML config; an empty dict for empty text."""
    return parse_yaml(config, "config.yaml") or {}


def flatten_config(config: str) -> dict[str, str]:
    """Returns the values of a YAML config, keyed by path, such as ``{"Global.epochs": "90", …}``.

    Values are cut to 500 characters.
    """
    return {path: str(value)[:_MAX_LENGTH] for path, value in leaves(read_config_text(config)) if path}


def start_loggers(specs: Sequence[LoggerSpec], run: TrackedRun) -> list[Reporter]:
    """Starts the trackers of a run, and returns their reporters.

    Raises:
        UserError: The package of a tracker is not installed. Other failures of a tracker do not end the run.
    """
    for spec in specs:
        module, extra = _LIBRARIES[type(spec)]
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(
                f"Global.loggers: {spec.kind} needs the package {module} ({error}); "
                f"pip install '.[{extra}]' in the folder of ppcls, or remove {spec.kind}"
            ) from None
    return [BackgroundLogger(spec.kind, _start(spec, run)) for spec in specs]


def _start(spec: LoggerSpec, run: TrackedRun) -> Callable[[], Tracker]:
    match spec:
        case TensorBoard():
            return lambda: TensorBoardTracker(spec, run)
        case MLflow():
            return lambda: MLflowTracker(spec, run)
        case WandB():
            return lambda: WandBTracker(spec, run)
    raise TypeError(f"{spec.kind} is not a logger")
