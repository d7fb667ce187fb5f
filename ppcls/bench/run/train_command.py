"""Runs the training command in a fresh process and measures where its wall-clock time goes."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Timer

from ppcls.bench.measure.processes import end_process, exit_text, last_lines, ppcls_command, started_process
from ppcls.bench.measure.runner import RATE, Candidate, MeasurementFailed, Sample
from ppcls.bench.results.schema import ResultRow
from ppcls.bench.run.split import PARTS, OutputLine, split_time
from ppcls.config.schema import Config
from ppcls.report.jsonlines import read_records
from ppcls.report.record import StepRecord


def run_training(config: Config, path: str, overrides: Sequence[str], timeout: float) -> Sample:
    """Trains once in a temporary output folder; returns the seconds of each part, and images per second.

    Raises:
        MeasurementFailed: The run failed, or exceeded the timeout.
    """
    images_per_update = config.DataLoader.need_train().sampler.rows(1) * config.Global.update_freq
    with tempfile.TemporaryDirectory(prefix="ppcls-bench-") as folder:
        output_dir = Path(folder) / "run"
        command = ppcls_command("train", "-c", path, "-o", *overrides, f"Global.output_dir={output_dir}")
        lines, total = _run(command, timeout)
        records = read_records(output_dir / "metrics.jsonl")
    try:
        parts = split_time(lines, records, total, images_per_update)
    except ValueError as error:
        raise MeasurementFailed(str(error)) from None
    updates = max(record.update for record in records if isinstance(record, StepRecord))
    return {"seconds": total, RATE: updates * images_per_update / total, "parts": parts}


def _run(command: list[str], timeout: float) -> tuple[list[OutputLine], float]:
    """Runs a command; returns its output with times, and the seconds until it ended."""
    began = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with started_process(command, {"PYTHONUNBUFFERED": "1"}, **pipes) as process:
        assert process.stdout is not None  # by PIPE
        late = Timer(timeout, end_process, [process])
        late.start()
        try:
            lines = [OutputLine(time.perf_counter() - began, line) for line in process.stdout]
            code = process.wait()
        finally:
            late.cancel()
            process.stdout.close()
    total = time.perf_counter() - began
    if code:
        reason = f"not done after {timeout:g} s" if total >= timeout else exit_text(code)
        raise MeasurementFailed(reason, last_lines([line.text for line in lines]))
    return lines, total


def make_rows(measured: Sequence[Candidate[str]]) -> list[ResultRow]:
    """Returns a row for each part of the wall-clock time, and one for the whole run."""
    rows = []
    for whole in measured:
        for part in PARTS if whole.samples else ():
            samples = [
                {"seconds": sample["parts"][part], "share": sample["parts"][part] / sample["seconds"]}
                for sample in whole.samples
            ]
            rows.append(replace(whole, labels={"part": part}, samples=samples, reason="").row())
        rows.append(whole.row())
    return rows
