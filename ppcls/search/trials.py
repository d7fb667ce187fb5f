"""Runs ``ppcls train`` in child processes, which free all memory when they end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.files import write_text
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord
from ppcls.runtime.launch import child_environment

_PACKAGES = str(Path(__file__).parents[2])
_STOP_SECONDS = 60.0  # for a stopped run to save its checkpoint


def write_config(config: Config, path: Path) -> Path:
    """Writes the config of a child process, and returns its file."""
    write_text(path, dump_config(config))
    return path


@contextmanager
def start_training(
    config: Path, overrides: Sequence[str], log: Path, options: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts ``ppcls train``, and stops it at the end of the block if it still runs.

    Args:
        overrides: ``KEY=VALUE`` each.
        log: File for standard output and standard error.
        options: Further options.
    """
    changes = ["-o", *overrides] if overrides else []
    environment = child_environment({})
    path = os.pathsep.join(filter(None, [_PACKAGES, environment.get("PYTHONPATH")]))
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "ppcls", "train", "-c", str(config), *options, *changes],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "PYTHONPATH": path},
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


def read_evaluations(output_dir: Path) -> list[EvalRecord]:
    """Returns the evaluations of a run so far."""
    records = read_records(output_dir / "metrics.jsonl")
    return [record for record in records if isinstance(record, EvalRecord)]


def last_lines(log: Path) -> str:
    """Returns the end of a child's output, for an error."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    _, separator, error = text.rpartition("error: ")
    return error if separator else "\n".join(text.splitlines()[-5:])
