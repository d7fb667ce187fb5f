"""Measurements in processes of their own, for flags, threads and peaks of memory belong to a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ppcls.runtime.launch import child_environment
from ppcls.runtime.signals import interruptible

WORKER = Path(__file__).parents[1] / "worker.py"
_TAIL = 20  # lines of a crash
_GRACE = 10.0  # seconds to end in


@dataclass(frozen=True)
class Outcome:
    """What became of a measurement.

    Attributes:
        found: What it found; None where it failed.
        reason: Why it failed.
        log: The last lines of a process that crashed.
    """

    found: dict[str, Any] | None
    reason: str = ""
    log: str = ""


def measure_apart(
    start: Sequence[str], task: Mapping[str, Any], environment: Mapping[str, str | None], timeout: float
) -> Outcome:
    """Has another process measure, and waits for it.

    Args:
        start: Command; the folder of the task is its last argument, and stands for each ``{folder}``.
        task: Written as ``task.json`` into that folder.
        environment: Variables to set; None removes one.
        timeout: Seconds after which it is ended.
    """
    with tempfile.TemporaryDirectory(prefix="ppcls-bench-") as name:
        folder = Path(name)
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
        command = [*(each.replace("{folder}", name) for each in start), str(folder)]
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(environment),
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which ends all below it
            )
            try:
                with interruptible():  # else what is below this process would be left behind
                    code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                _end(process)
                return Outcome(None, f"not done after {timeout:g} s", _tail(folder))
            except BaseException:  # such as Ctrl-C: nothing of ours is to go on
                _end(process)
                raise
        return _read(folder, code)


def paddle_command(kind: str, processes: int = 1) -> list[str]:
    """Returns the command of one of our workers, under Paddle's launcher where there are several."""
    launcher = ["-m", "paddle.distributed.launch", "--log_dir", "{folder}/log"]
    several = [*launcher, "--nproc_per_node", str(processes)] if processes > 1 else []
    return [sys.executable, *several, str(WORKER), kind]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all below it: asks first, for a launcher ends its processes itself."""
    below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    process.kill()
    process.wait()
    for each in below:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(below, _GRACE)


def _read(folder: Path, code: int) -> Outcome:
    said = sorted(folder.glob("rank_*.json"), key=lambda file: file.stat().st_mtime_ns)
    answers = [json.loads(file.read_text(encoding="utf-8")) for file in said]
    if reasons := [each["reason"] for each in answers if "reason" in each]:
        return Outcome(None, reasons[0])  # the first one's; the others' may follow from it
    found = [each["found"] for file, each in zip(said, answers, strict=True) if file.stem == "rank_0"]
    if found and code == 0:
        return Outcome(found[0])
    log = _tail(folder)
    last = log.strip().splitlines()[-1:] or ["it said nothing"]
    return Outcome(None, f"{_ended(code)}: {last[0].strip()}", log)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = "; too little memory?" if -code == signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{hint}"


def _tail(folder: Path) -> str:
    """Returns the last lines of the first process, or of the launcher where it started none."""
    files = [*sorted(folder.glob("log/workerlog.*")), folder / "output.txt"]
    texts = [file.read_text(encoding="utf-8", errors="replace").strip() for file in files]
    shown = next((text for text in texts if text), "")
    return "".join(f"{line}\n" for line in shown.splitlines()[-_TAIL:])
