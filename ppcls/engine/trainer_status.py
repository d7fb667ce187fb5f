"""Posts the progress of a run to the status endpoint of Kubeflow Trainer.

With the feature of KEP-2779, the controller sets three variables in the containers of a TrainJob: the address
of the endpoint, and the paths of its certificate and of a token, which is renewed in its file. `kubectl get
trainjob -o yaml` then shows the percentage, the remaining time and the metrics.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib import request

from ppcls.files import print_error
from ppcls.report.record import EvalRecord, Record, Reporter, StepPosition

_URL = "KUBEFLOW_TRAINER_STATUS_URL"
_CERTIFICATE = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
_TOKEN = "KUBEFLOW_TRAINER_STATUS_TOKEN"  # noqa: S105 - the name of a variable
_INTERVAL = 10.0  # seconds between two posts
_TIMEOUT = 10.0  # seconds for one post


class TrainerStatus(Reporter):
    """Posts percentage, remaining time and metrics from a thread. No failure ends or delays the run.

    Args:
        post: Function that posts a status. The thread calls it.
        interval: Seconds between two posts.
    """

    def __init__(self, post: Callable[[Mapping[str, Any]], None], interval: float = _INTERVAL) -> None:
        self._post = post
        self._interval = interval
        self._metrics: dict[str, float] = {}
        self._percentage = 0
        self._remaining: int | None = None
        self._first: tuple[float, int] | None = None  # time and remaining steps after the first update
        self._ended = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Keeps the metrics of a record for the next post."""
        prefix = "eval" if isinstance(record, EvalRecord) else "train"
        values = {"loss": record.loss, **record.metrics}
        self._metrics |= {f"{prefix}_{name}": float(value) for name, value in values.items()}

    def advance(self, position: StepPosition) -> None:
        """Keeps the position for the next post."""
        steps = position.epochs * position.steps_per_epoch
        now = time.monotonic()
        if self._first is None:
            self._first = (now, position.remaining)
        start, remaining = self._first
        if position.remaining < remaining:
            rate = (now - start) / (remaining - position.remaining)
            self._remaining = round(position.eta(rate))
        self._percentage = min(100 * (steps - position.remaining) // max(steps, 1), 99)

    def finish(self) -> None:
        """Sets the percentage to 100."""
        self._percentage = 100
        self._remaining = 0

    def close(self) -> None:
        """Posts the last status, and waits for it for at most the timeout of a post."""
        self._ended.set()
        self._thread.join(_TIMEOUT)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self._send()
        self._send()

    def _send(self) -> None:
        status: dict[str, Any] = {
            "progressPercentage": self._percentage,
            "metrics": [
                {"name": name, "value": f"{value:.6g}"} for name, value in self._metrics.copy().items()
            ],
            "lastUpdatedTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if self._remaining is not None:
            status["estimatedRemainingSeconds"] = self._remaining
        try:
            self._post({"trainerStatus": status})
        except (OSError, ValueError) as error:  # a ValueError: an invalid address or token
            if not self._failed:
                print_error(
                    f"the status endpoint of Kubeflow Trainer ({_URL}): {error}; the run continues, and "
                    f"tries again every {self._interval:g} s"
                )
            self._failed = True


def trainer_status(environment: Mapping[str, str] = os.environ) -> list[Reporter]:
    """Returns a reporter if the variables of Kubeflow Trainer exist, otherwise an empty list."""
    url, certificate, token = (environment.get(name) for name in (_URL, _CERTIFICATE, _TOKEN))
    if not url or not certificate or not token:
        return []
    return [TrainerStatus(lambda status: _post(status, url, Path(certificate), Path(token)))]


def _post(status: Mapping[str, Any], url: str, certificate: Path, token: Path) -> None:
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"expected an address with https://, got {url!r}")
    headers = {
        "Authorization": f"Bearer {token.read_text(encoding='utf-8').strip()}",
        "Content-Type": "application/json",
    }
    context = ssl.create_default_context(cafile=str(certificate)) if url.startswith("https:") else None
    message = request.Request(url, json.dumps(status).encode(), headers, method="POST")  # noqa: S310
    with request.urlopen(message, timeout=_TIMEOUT, context=context) as answer:  # noqa: S310
        answer.read()
