"""Runs scripts in one or several processes, and checks that they succeed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import paddle
from paths import ROOT, SUPPORT

LINEAR = SUPPORT / "linear_run.py"
CAPTURED = SUPPORT / "captured_run.py"
TRAIN = ROOT / "tools" / "train.py"

_SECONDS_TO_END = 30  # of a process after SIGTERM, the limit of Paddle's launcher


def run(script: Path, *arguments: str, ranks: int = 1, logs: Path) -> None:
    """Runs a script; with several ranks, their logs go to ``logs``."""
    command = [str(script), *arguments]
    done = launch(command, ranks, logs) if ranks > 1 else _run([sys.executable, *command], logs.parent)
    rank1 = (logs / "workerlog.1").read_text() if ranks > 1 else ""
    output = done.stdout[-3000:] + done.stderr[-3000:] + rank1[-3000:]
    assert done.returncode == 0, f"exit code {done.returncode}: {output}"


def launch(
    command: list[str], ranks: int, logs: Path, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a script with its arguments in several processes, in the folder that contains ``logs``.

    On CPUs, the processes get what `paddle.distributed.launch` would give them, without the second that
    Paddle's launcher needs to import Paddle. If one fails, the others are ended, as the launcher does.
    """
    if paddle.is_compiled_with_cuda():
        launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks), "--log_dir", str(logs)]
        return _run([sys.executable, *launcher, *command], logs.parent, variables)
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(ranks + 1)]
        master, *endpoints = (f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            log = stack.enter_context((logs / f"workerlog.{rank}").open("w"))
            places = {
                "PADDLE_MASTER": master,
                "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
                "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
                "PADDLE_TRAINERS_NUM": str(ranks),
                "PADDLE_LOCAL_SIZE": str(ranks),
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_LOCAL_RANK": str(rank),
                "PADDLE_LOG_DIR": str(logs),
            }
            process = subprocess.Popen(
                [sys.executable, "-u", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=logs.parent,
                env=_environment() | places | (variables or {}),
            )
            stack.callback(process.kill)
            processes.append(process)
        code = _await(processes)
    return subprocess.CompletedProcess(command, code, (logs / "workerlog.0").read_text(), "")


def _await(processes: list[subprocess.Popen[bytes]]) -> int:
    """Returns the exit code of the first process that failed, or 0.

    As Paddle's launcher, this ends the others by SIGTERM, and after 30 seconds by SIGKILL: a process that
    waits in a collective operation for a process that has ended does not react to SIGTERM.
    """
    while None in (codes := [each.poll() for each in processes]) and not any(codes):
        time.sleep(0.02)
    for each in processes:
        if each.poll() is None:
            each.terminate()
    for each in processes:
        try:
            each.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
    return next((code for code in codes if code), 0)


def _run(
    command: list[str], folder: Path, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = _environment() | (variables or {})
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PADDLE_")}


def train_on_gpu(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs tools/train.py on a GPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLAGS_")}
    return subprocess.run(
        [sys.executable, "tools/train.py", "-c", file, "-o", "Global.device=gpu", *options],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
