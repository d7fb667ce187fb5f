"""Experiment trackers beside VisualDL: TensorBoard, MLflow, Weights & Biases.

Their libraries are optional. Each tracker runs on a thread of its own, so that a slow or unreachable server
neither delays nor ends the run.
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
from typing import Protocol

import yaml

from ppcls.config.base.tree import leaves
from ppcls.config.sections.logger import LoggerSpec, MLflow, TensorBoard, WandB
from ppcls.errors import UserError
from ppcls.files import print_error, write_text
from ppcls.report.record import EvalRecord, Record, Reporter
from ppcls.report.visualdl import scalars

RUN_IDS = "loggers.json"
_MAX_WAITING = 10_000  # records; later ones are dropped
_CLOSE_SECONDS = 60.0
_MAX_PARAMETERS, _MAX_LENGTH = 100, 500  # of one MLflow request, of one value
_LIBRARIES = {
    TensorBoard: ("tensorboardX", "loggers"),
    MLflow: ("mlflow", "mlflow"),
    WandB: ("wandb", "wandb"),
}


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker needs to know about a run.

    Attributes:
        name: Name of the run.
        output_dir: Output folder of the run.
        config: The config as YAML.
        resumed_from: Number of optimizer updates at which the run resumes; None for a run from scratch.
    """

    name: str
    output_dir: Path
    config: str = ""
    resumed_from: int | None = None


class Tracker(Protocol):
    """Sends scalars to an experiment tracker. Any exception of its methods stops the tracker only."""

    def log(self, values: dict[str, float], update: int) -> None:
        """Sends finite values by tag, such as ``train/loss``."""

    def finish(self, failed: bool) -> None:
        """Ends the log. ``failed`` says whether an error ended the run."""


class BackgroundLogger(Reporter):
    """Passes records to a tracker on a thread. If the tracker fails, standard error says so once.

    Args:
        start: Starts the tracker; called on the thread.
    """

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name, self._start = name, start
        self._queue: queue.Queue[Record | bool] = queue.Queue(_MAX_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"logger {name}", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Queues a record. It is dropped if the tracker has failed or is far behind."""
        if isinstance(record, EvalRecord):
            record = replace(record, outcomes=None)
        if self._thread.is_alive() and not self._queue.full():
            self._queue.put(record)

    def close(self) -> None:
        """Waits a limited time until the tracker has received everything."""
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + _CLOSE_SECONDS
        failed = sys.exc_info()[0] is not None  # close is called while the error that ends the run passes by
        while self._thread.is_alive() and time.monotonic() < end:
            try:
                self._queue.put(failed, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._report(f"not finished after {_CLOSE_SECONDS:.0f} s; its log may be incomplete")

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
    """Writes another event file to a folder.

    Args:
        run: The run. If it is resumed, TensorBoard hides values in earlier files from after the update at
            which it resumed.
    """

    def __init__(self, spec: TensorBoard, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter

        first = 0 if run.resumed_from is None else run.resumed_from + 1
        folder = spec.folder or run.output_dir / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=first, filename_suffix=f".{first}")

    def log(self, values: dict[str, float], update: int) -> None:
        """Writes scalars."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, update)
        self._writer.flush()

    def finish(self, failed: bool) -> None:  # noqa: ARG002 - see Tracker
        """Closes the file."""
        self._writer.close()


class MLflowTracker:
    """Logs metrics of an MLflow run, and the config as its parameters.

    Args:
        run: The run. If it is resumed, the same MLflow run continues.
    """

    def __init__(self, spec: MLflow, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(tracking_uri=spec.tracking_uri), Metric
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
        """Sets the status of the run."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


class WandBTracker:
    """Logs to a run of Weights & Biases.

    Args:
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
            config=yaml.safe_load(run.config) or {},
        )
        ids.write(spec.kind, number)
        # W&B's own step cannot go back to the update of a checkpoint.
        self._run.define_metric("*", step_metric="update")

    def log(self, values: dict[str, float], update: int) -> None:
        """Logs values over updates."""
        self._run.log({**values, "update": update})

    def finish(self, failed: bool) -> None:
        """Ends the run."""
        self._run.finish(exit_code=int(failed))


class RunIds:
    """The trackers' names of a run, in its output folder, so that a resumed run finds them.

    Args:
        run: The run. One from scratch knows no earlier names.
    """

    _lock = threading.Lock()  # one thread per tracker

    def __init__(self, run: TrackedRun) -> None:
        self._path, self._resumed = run.output_dir / RUN_IDS, run.resumed_from is not None

    def read(self, kind: str) -> str | None:
        """Returns the run's name in a tracker; None if there is none."""
        with self._lock:
            return self._load().get(kind) if self._resumed else None

    def write(self, kind: str, name: str) -> None:
        """Stores the run's name in a tracker."""
        with self._lock:
            write_text(self._path, json.dumps({**self._load(), kind: name}) + "\n")

    def _load(self) -> dict[str, str]:
        try:
            ids = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return ids if isinstance(ids, dict) else {}


def flatten_config(config: str) -> dict[str, str]:
    """Returns the values of a YAML config by path, shortened: ``{"Global.epochs": "90", …}``."""
    tree = yaml.safe_load(config) or {}
    return {path: str(value)[:_MAX_LENGTH] for path, value in leaves(tree) if path}


def start_loggers(specs: Sequence[LoggerSpec], run: TrackedRun) -> list[Reporter]:
    """Starts the loggers of a run.

    Raises:
        UserError: The library of a logger is not installed. Other failures of a logger are only reported.
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
