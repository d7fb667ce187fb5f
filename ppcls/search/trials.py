"""Runs ``ppcls train`` in child processes, so that each run frees all of its memory when it ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ppcls.errors import UserError
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.runtime.launch import child_environment, ppcls_command

_STOP_SECONDS = 60.0  # time for a stopped run to save its checkpoint


@contextmanager
def start_training(
    config: Path, overrides: Sequence[str], log: Path, options: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts ``ppcls train`` and yields its process, which is stopped at the end of the block.

    Args:
        config: Config file of the run.
        overrides: Overrides of config keys, each as ``KEY=VALUE``.
        log: File for standard output and standard error.
        options: Further options of ``ppcls train``.
    """
    changes = ["-o", *overrides] if overrides else []
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            ppcls_command("train", "-c", str(config), *options, *changes),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment({}),
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def evaluate_confusion(config: Path, table: Path, log: Path) -> None:
    """Evaluates the best model of a finished run in a child process, and writes its confusion matrix.

    Args:
        config: Config file of the run.
        table: File for the confusion matrix. It may exist.
        log: File to which the output is appended.

    Raises:
        UserError: The evaluation fails.
    """
    with log.open("ab") as output:
        done = subprocess.run(  # noqa: S603
            ppcls_command("eval", "-c", str(config), "--confusion", str(table)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment({}),
            check=False,
        )
    if done.returncode:
        raise UserError(f"{config}: the evaluation of the best model failed: {last_lines(log)}; see {log}")


def read_evaluations(output_dir: Path) -> list[EvalRecord]:
    """Returns the records of all evaluations that a run has finished so far."""
    records = read_records(output_dir / "metrics.jsonl")
    return [record for record in records if isinstance(record, EvalRecord)]


def last_lines(log: Path) -> str:
    """Returns the last error message in a log, or the last five lines if there is none.

    Raises:
        UserError: The log is missing, although the run has just written to it.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        raise UserError(
            f"{log.parent}: this output folder was renamed or removed while a run in it was training; rename "
            "it back, or start again with another Global.output_dir"
        ) from None
    _, separator, error = text.rpartition("error: ")
    return error if separator else "\n".join(text.splitlines()[-5:])
