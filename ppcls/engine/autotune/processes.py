"""Measures in separate processes, because each process has its own flags, threads and peak memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ppcls.errors import UserError
from ppcls.files import write_text
from ppcls.files.temporary import temporary_folder
from ppcls.runtime.launch import child_environment, read_launch
from ppcls.runtime.signals import interruptible

Sample = dict[str, Any]  # one measurement, with keys such as ``images_per_second``
_LOG_LINES = 20
_TERMINATE_SECONDS = 10.0


class MeasurementFailed(UserError):  # noqa: N818 - an expected outcome
    """Raised if something cannot be measured. Other measurements continue nevertheless.

    Args:
        reason: Cause, in one line.
        log: Last lines of the log of a process that crashed.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(f"{reason}\n{log}".rstrip())
        self.reason = reason


@contextmanager
def started_process(
    command: Sequence[str], environment: Mapping[str, str | None] | None = None, **pipes: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Starts a process, and ends it and its descendants at the end of the ``with`` block.

    Args:
        command: Command line.
        environment: Environment variables to set; the value None removes a variable.
        **pipes: Further arguments of `subprocess.Popen`.

    Raises:
        MeasurementFailed: The process cannot be started.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            env=child_environment(environment or {}),
            start_new_session=True,  # so that Ctrl-C reaches only this process, which ends the others
            **pipes,
        )
    except OSError as error:
        raise MeasurementFailed(f"{command[0]}: cannot be started: {error.strerror}") from None
    try:
        with interruptible():  # otherwise a signal would leave descendants behind
            yield process
    finally:
        if process.poll() is None:
            end_process(process)


@dataclass(frozen=True)
class MeasuringProcess:
    """A process that measures one task, or a launcher of several such processes.

    Attributes:
        command: Command line. The task's folder replaces ``{folder}``, and is appended as the last argument.
        task: Content of ``task.json`` in the task's folder. The process writes its sample to ``rank_N.json``.
        timeout: Seconds after which the process is ended.
        environment: Environment variables to set; the value None removes a variable.
    """

    command: list[str]
    task: Mapping[str, Any]
    timeout: float
    environment: Mapping[str, str | None] = field(default_factory=dict)

    def run(self) -> Sample:
        """Starts the process, waits for it and returns the sample of rank 0.

        Raises:
            MeasurementFailed: The process reported a reason, crashed, or exceeded the timeout.
        """
        with temporary_folder("bench") as folder:
            name = str(folder)
            (folder / "task.json").write_text(json.dumps(self.task), encoding="utf-8")
            command = [*(word.replace("{folder}", name) for word in self.command), name]
            with (
                (folder / "output.txt").open("wb") as output,
                started_process(command, self.environment, stdout=output, stderr=output) as process,
            ):
                try:
                    code = process.wait(self.timeout)
                except subprocess.TimeoutExpired:
                    raise MeasurementFailed(f"not finished after {self.timeout:g} s", _log(folder)) from None
            return _read_sample(folder, code)


def worker_command(script: Path, *words: str, processes: int = 1) -> list[str]:
    """Returns the command line of a script that calls `answer_task`, in one or several processes."""
    launcher = ["-m", "paddle.distributed.launch", "--log_dir", "{folder}/log"]
    several = [*launcher, "--nproc_per_node", str(processes)] if processes > 1 else []
    return [sys.executable, *several, str(script), *words]


def answer_task(folder: Path, measure: Callable[[Mapping[str, Any]], Sample]) -> int:
    """Measures the task in a folder, in the process that `MeasuringProcess` started. Returns the exit code.

    Writes ``rank_N.json``, which contains the sample or the reason of a failure.

    Args:
        folder: Folder that contains ``task.json``.
        measure: Function that returns the sample of a task.
    """
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    try:
        answer: dict[str, Any] = {"found": measure(task)}
    except UserError as error:
        answer = {"reason": str(error)}
    write_text(folder / f"rank_{read_launch().rank}.json", json.dumps(answer))
    return 0 if "found" in answer else 1


def end_process(process: subprocess.Popen[Any]) -> None:
    """Ends a process and its descendants. A launcher has ten seconds to end its ranks itself."""
    descendants = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TERMINATE_SECONDS)
    process.kill()
    process.wait()
    for descendant in descendants:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    psutil.wait_procs(descendants, _TERMINATE_SECONDS)


def _read_sample(folder: Path, code: int) -> Sample:
    files = sorted(folder.glob("rank_*.json"), key=lambda file: file.stat().st_mtime_ns)
    answers = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    for answer in answers.values():
        if "reason" in answer:
            raise MeasurementFailed(answer["reason"])  # the first one may have caused the others
    if "rank_0" in answers and code == 0:
        sample: Sample = answers["rank_0"]["found"]
        return sample
    log = _log(folder)
    last = log.strip().splitlines()[-1:] or ["no output"]
    raise MeasurementFailed(f"{exit_text(code)}: {last[0].strip()}", log)


def exit_text(code: int) -> str:
    """Returns the meaning of an exit code, such as ``killed by SIGTERM``."""
    if code >= 0:
        return f"exit code {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def _log(folder: Path) -> str:
    """Returns the last lines of the log of the first rank, or of the launcher if there is no such log."""
    files = [*sorted(folder.glob("log/workerlog.*")), folder / "output.txt"]
    texts = [file.read_text(encoding="utf-8", errors="replace").strip() for file in files]
    return last_lines(next((text for text in texts if text), "").splitlines())


def last_lines(lines: Sequence[str]) -> str:
    """Returns the last 20 lines of a log as text."""
    return "".join(f"{line.rstrip()}\n" for line in lines[-_LOG_LINES:])
