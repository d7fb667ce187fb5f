from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import yaml
from report_records import EVALUATION, STEP, make_records
from runs import GUARD

from ppcls.errors import UserError
from ppcls.recipe.settings import Global
from ppcls.report import background
from ppcls.report.background import BackgroundLogger, DirectLogger, start_loggers
from ppcls.report.html import RunInfo
from ppcls.report.loggers import MLflow, TensorBoard, WandB
from ppcls.report.record import Record
from ppcls.report.reporters import build_reporters
from ppcls.report.trackers import RUN_IDS, Logger, TrackedRun, flatten_config

INFO = RunInfo("ResNet18, output", "Global: {epochs: 2}\nArch: {name: ResNet18}\n")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, a library needs longer than ten seconds to start."""
    monkeypatch.setattr(background, "_CALL_SECONDS", GUARD)


def log(folder: Path, spec: Logger, records: list[Record], resumed_from: int | None = None) -> None:
    reporters = build_reporters(folder, False, resumed_from, info=INFO, loggers=[spec])
    reporters.message("not a scalar")
    for record in records:
        reporters.record(record)
    reporters.close()
    reporters.close()


def test_settings_are_names_or_mappings() -> None:
    settings = Global.model_validate(
        {"loggers": ["tensorboard", {"mlflow": {"experiment": "digits"}}, "wandb"]}
    )
    assert settings.loggers == (TensorBoard(), MLflow(experiment="digits"), WandB())
    assert Global.model_validate(yaml.safe_load(yaml.safe_dump(settings.model_dump(mode="json")))) == settings
    with pytest.raises(ValueError, match="use_visualdl"):
        Global.model_validate({"loggers": ["visualdl"]})


def test_tensorboard_reads_a_resumed_run_as_one_curve(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = make_records(2)
    log(tmp_path, TensorBoard(), records)  # the second epoch is lost in a crash
    log(tmp_path, TensorBoard(), records[3:], resumed_from=90)
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == [45, 90, 135, 180]
    assert [event.step for event in reader.Scalars("eval/top1")] == [90, 180]
    assert reader.Scalars("train/loss")[0].value == pytest.approx(records[0].loss)


def test_mlflow_run_continues_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    check_mlflow_run(tmp_path, (tmp_path / "mlruns").as_uri())


@pytest.mark.slow
def test_mlflow_server_receives_the_run(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    with (tmp_path / "server.log").open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        while server.poll() is None and not answers(f"{address}/health"):
            time.sleep(0.2)
        check_mlflow_run(tmp_path, address)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def answers(address: str) -> bool:
    try:
        return httpx.get(address).is_success
    except httpx.TransportError:
        return False


def check_mlflow_run(tmp_path: Path, address: str) -> None:
    from mlflow import MlflowClient

    spec = MLflow(tracking_uri=address, experiment="digits")
    records = make_records(2)
    log(tmp_path, spec, records[:3])
    client = MlflowClient(tracking_uri=spec.tracking_uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.data.params == {"Global.epochs": "2", "Arch.name": "ResNet18"}
    log(tmp_path, spec, records[3:], resumed_from=90)
    (run,) = client.search_runs([run.info.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(metric.step for metric in history) == [45, 90, 135, 180]
    with pytest.raises(ValueError, match="bad"):  # noqa: PT012
        reporters = build_reporters(tmp_path, False, 180, info=INFO, loggers=[spec])
        try:
            raise ValueError("bad")
        finally:
            reporters.close()
    assert client.get_run(run.info.run_id).info.status == "FAILED"


def test_wandb_run_keeps_its_id_after_a_resume(tmp_path: Path) -> None:
    import wandb

    log(tmp_path, WandB(mode="offline"), make_records(1))
    first = json.loads((tmp_path / RUN_IDS).read_text())["wandb"]
    log(tmp_path, WandB(mode="offline"), make_records(2)[3:], resumed_from=90)
    assert json.loads((tmp_path / RUN_IDS).read_text())["wandb"] == first
    assert list(tmp_path.glob(f"wandb/offline-run-*-{first}/*.wandb"))
    wandb.teardown()  # its process ends before pytest looks for processes that are left


def do_nothing() -> None:
    """A library that does not wait when Python ends."""


class FailingTracker:
    def log(self, values: dict[str, float], update: int) -> None:
        raise RuntimeError("server\nis gone")

    def finish(self, failed: bool) -> None:
        raise AssertionError("not called after a failure")


def test_failing_tracker_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger = BackgroundLogger("mlflow", FailingTracker, do_nothing)
    for _ in range(3):
        logger.record(STEP)
        logger._thread.join(0.2)
    logger.close()
    logger.close()
    assert capsys.readouterr().err == (
        "Global.loggers: mlflow: server is gone; the run continues without this logger\n"
    )


class HangingTracker:
    """Tracker that hangs in one of its calls.

    Args:
        hanging: Name of the call.
        entered: Event that is set when the call begins.
    """

    def __init__(self, hanging: str, entered: threading.Event) -> None:
        self._hanging = hanging
        self._entered = entered
        self._hang("start")

    def log(self, values: dict[str, float], update: int) -> None:
        self._hang("log")

    def finish(self, failed: bool) -> None:
        self._hang("finish")

    def _hang(self, call: str) -> None:
        if call == self._hanging:
            self._entered.set()
            threading.Event().wait()


@pytest.mark.parametrize("call", ["start", "log", "finish"])
def test_run_does_not_wait_for_a_tracker_that_hangs(
    call: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(background, "_CALL_SECONDS", 0.2)
    monkeypatch.setattr(background, "_MAX_WAITING", 5)
    entered = threading.Event()
    abandoned = threading.Event()
    logger = BackgroundLogger("mlflow", lambda: HangingTracker(call, entered), abandoned.set)
    for _ in range(3):
        logger.record(EVALUATION)
    logger.close()
    assert entered.wait(GUARD)  # on a slow machine, after the end of the run
    assert abandoned.is_set()
    assert "mlflow: did not receive all records before the end of the run" in capsys.readouterr().err


def test_run_drops_records_of_a_tracker_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(background, "_MAX_WAITING", 5)
    logger = BackgroundLogger("wandb", lambda: HangingTracker("start", threading.Event()), do_nothing)
    for _ in range(50):
        logger.record(EVALUATION)
    logger.close()
    assert "wandb: did not receive all records" in capsys.readouterr().err


def test_run_waits_for_a_slow_tracker_that_still_receives_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[int] = []

    class SlowTracker:
        def log(self, values: dict[str, float], update: int) -> None:
            time.sleep(0.45)
            received.append(update)

        def finish(self, failed: bool) -> None:
            received.append(-1)

    monkeypatch.setattr(background, "_CALL_SECONDS", 5.0)  # less than all calls take
    logger = BackgroundLogger("mlflow", SlowTracker, do_nothing)
    for _ in range(12):
        logger.record(STEP)
    logger.close()
    assert received == [STEP.update] * 12 + [-1]
    assert not capsys.readouterr().err


def test_only_loggers_that_wait_for_a_server_have_a_thread(tmp_path: Path) -> None:
    run = TrackedRun("run", tmp_path)
    reporters = start_loggers([TensorBoard(), WandB(mode="offline")], run)
    assert [type(reporter) for reporter in reporters] == [DirectLogger, BackgroundLogger]
    for reporter in reporters:
        reporter.close()
    import wandb

    wandb.teardown()


@pytest.mark.parametrize("call", ["start", "log", "finish"])
def test_failure_of_a_direct_logger_is_reported_once(call: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Tracker:
        def __init__(self) -> None:
            self.fail("start")

        def log(self, values: dict[str, float], update: int) -> None:
            self.fail("log")

        def finish(self, failed: bool) -> None:
            self.fail("finish")

        def fail(self, name: str) -> None:
            if name == call:
                raise OSError("disk full")

    logger = DirectLogger("tensorboard", Tracker)
    logger.record(STEP)
    logger.record(STEP)
    logger.close()
    logger.close()
    assert capsys.readouterr().err == (
        "Global.loggers: tensorboard: disk full; the run continues without this logger\n"
    )


HUNG_SERVER = """
import sys
from pathlib import Path
from ppcls.report.background import start_loggers
from ppcls.report.loggers import MLflow, WandB
from ppcls.report.trackers import TrackedRun
logger = {"mlflow": MLflow(tracking_uri=sys.argv[2]), "wandb": WandB(mode="online")}[sys.argv[1]]
for reporter in start_loggers([logger], TrackedRun("run", Path(sys.argv[3]))):
    reporter.close()
print("closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_process_ends_although_the_server_of_its_tracker_hangs(name: str, tmp_path: Path) -> None:
    """The library must not wait at the exit of Python either: MLflow retries for minutes, W&B for 90 s."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # the system accepts connections, and nobody answers
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_SILENT": "true"}
        done = subprocess.run(
            [sys.executable, "-c", HUNG_SERVER, name, address, str(tmp_path)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=GUARD,
        )
    assert done.returncode == 0, done.stderr
    assert "did not receive all records" in done.stderr


def test_missing_library_is_an_error_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"mlflow needs the package mlflow .*pip install '\.\[mlflow\]'"):
        start_loggers([MLflow()], TrackedRun("run", tmp_path))


def test_flattened_config_has_short_values_by_path() -> None:
    assert flatten_config("a: {b: [1, 2], c: {}}\nd: null\n") == {"a.b": "[1, 2]", "a.c": "{}", "d": "None"}
    assert len(flatten_config(f"a: {'x' * 9999}")["a"]) == 500
    assert flatten_config("") == {}
