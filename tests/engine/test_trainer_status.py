"""Posts to the status endpoint of Kubeflow Trainer."""

from __future__ import annotations

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppcls.engine import trainer_status as trainer_status_module
from ppcls.engine.trainer_status import TrainerStatus, trainer_status
from ppcls.report.record import EvalRecord, StepPosition


def test_progress_remaining_time_and_metrics_are_posted(tmp_path: Path) -> None:
    posts: list[tuple[str | None, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.headers["Authorization"], json.loads(content)["trainerStatus"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = tmp_path / "token"
    token.write_text("secret\n")
    variables = {
        "KUBEFLOW_TRAINER_STATUS_URL": f"http://127.0.0.1:{server.server_address[1]}/status",
        "KUBEFLOW_TRAINER_STATUS_CA_CERT": str(tmp_path / "ca.crt"),
        "KUBEFLOW_TRAINER_STATUS_TOKEN": str(token),
    }
    (reporter,) = trainer_status(variables)
    for step in (1, 2, 3):
        reporter.advance(StepPosition(epoch=1, epochs=2, step=step, steps_per_epoch=4, images=8))
    reporter.record(EvalRecord(1, 4, 0.5, {"top1": 0.75}, 8, 1.0, True))
    reporter.close()
    server.shutdown()
    server.server_close()
    (authorization, status) = posts[-1]
    assert authorization == "Bearer secret"
    assert status["progressPercentage"] == 37
    assert status["estimatedRemainingSeconds"] >= 0
    assert {"name": "eval_top1", "value": "0.75"} in status["metrics"]
    assert {"name": "eval_loss", "value": "0.5"} in status["metrics"]


def test_finished_run_has_100_per_cent() -> None:
    posts: list[Any] = []
    reporter = TrainerStatus(posts.append)
    reporter.advance(StepPosition(epoch=2, epochs=2, step=4, steps_per_epoch=4, images=8))
    reporter.finish()
    reporter.close()
    assert posts[-1]["trainerStatus"]["progressPercentage"] == 100
    assert posts[-1]["trainerStatus"]["estimatedRemainingSeconds"] == 0


def test_remaining_time_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[Any] = []
    now = itertools.count(step=10)
    monkeypatch.setattr(trainer_status_module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    reporter = TrainerStatus(posts.append)
    for step in (1, 2):
        reporter.advance(StepPosition(1, 2, step, steps_per_epoch=4, images=8, seconds_left=25.0))
    reporter.close()
    assert posts[-1]["trainerStatus"]["estimatedRemainingSeconds"] == 25  # without the limit 60


def test_endpoint_that_fails_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    posts = threading.Semaphore(0)

    def fail(_status: Any) -> None:
        posts.release()
        raise ConnectionRefusedError("refused")

    reporter = TrainerStatus(fail, interval=0.001)
    for _ in range(3):
        posts.acquire()
    reporter.close()
    # Read only now: a text that another thread prints while it is read can be lost.
    assert capsys.readouterr().err.count("refused; the run continues") == 1


def test_without_the_variables_nothing_is_posted() -> None:
    assert trainer_status({"KUBEFLOW_TRAINER_STATUS_URL": "https://x"}) == []
