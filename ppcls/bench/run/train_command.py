"""Runs the training command in a fresh process and measures where its wall-clock time goes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Timer

from ppcls.bench.measure.processes import end_process, exit_text
from ppcls.bench.measure.runner import MeasurementFailed, Measurements, Sample
from ppcls.bench.results.schema import ResultRow
from ppcls.bench.run.split import PARTS, OutputLine, split_time
from ppcls.config.schema import Config
from ppcls.report.jsonlines import read_records
from ppcls.report.record import StepRecord
from ppcls.runtime.launch import child_environment
from ppcls.runtime.signals import interruptible

_ROOT = str(Path(__file__).resolve().parents[3])
_TRAIN = (  # as tools/train.py
    f"import sys; sys.path.insert(0, {_ROOT!r}); from ppcls.cli.train import train; sys.exit(train())"
)
_LOG_LINES = 20


def run_training(config: Config, path: str, overrides: Sequence[str], timeout: float) -> Sample:
    """Trains once in a temporary output folder; returns the seconds of each part, and images per second.

    Args:
        config: Config with all overrides.
        path: Its file.
        overrides: Overrides of the file.
        timeout: Seconds after which the run is aborted.

    Raises:
        MeasurementFailed: The run failed, or exceeded the timeout.
    """
    split = config.DataLoader.need_train()
    with tempfile.TemporaryDirectory(prefix="ppcls-bench-") as folder:
        output_dir = Path(folder) / "run"
        command = ["-c", path, "-o", *overrides, f"Global.output_dir={output_dir}"]
        lines, total = _run([sys.executable, "-c", _TRAIN, *command], timeout)
        records = read_records(output_dir / "metrics.jsonl")
    try:
        parts = split_time(lines, records, total, split.sampler.rows(1) * config.Global.update_freq)
    except ValueError as error:
        raise MeasurementFailed(str(error)) from None
    updates = max(record.update for record in records if isinstance(record, StepRecord))
    images = updates * split.sampler.rows(1) * config.Global.update_freq
    return {"images_per_second": images / total, "total": total, "parts": parts}


def _run(command: list[str], timeout: float) -> tuple[list[OutputLine], float]:
    """Runs a command; returns its output with times, and the seconds until it ended."""
    began = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment({"PYTHONUNBUFFERED": "1"}),
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process only, which ends its descendants
    )
    assert process.stdout is not None  # by PIPE
    late = Timer(timeout, end_process, [process])
    late.start()
    try:
        with interruptible():  # otherwise a signal would leave the run behind
            lines = [OutputLine(time.perf_counter() - began, line) for line in process.stdout]
            code = process.wait()
    except BaseException:
        end_process(process)
        raise
    finally:
        late.cancel()
        process.stdout.close()
    total = time.perf_counter() - began
    if code:
        reason = f"not done after {timeout:g} s" if total >= timeout else exit_text(code)
        raise MeasurementFailed(reason, "".join(line.text for line in lines[-_LOG_LINES:]))
    return lines, total


def make_rows(measured: Sequence[Measurements[str]]) -> list[ResultRow]:
    """Returns a row for each part of the wall-clock time, and one for the whole run."""
    rows = []
    for measurement in measured:
        if not measurement.samples:
            rows.append(ResultRow({"part": "whole run"}, {}, measurement.note))
            continue
        total = measurement.quantity("total", "s", "less")
        split = Measurements("", "", [sample["parts"] for sample in measurement.samples])
        share = Measurements(
            "",
            "",
            [
                {part: sample["parts"][part] / sample["total"] for part in PARTS}
                for sample in measurement.samples
            ],
        )
        for part in PARTS:
            metrics = {
                "time": split.quantity(part, "s", "less"),
                "share": share.quantity(part, "%", "neither", 100),
            }
            rows.append(ResultRow({"part": part}, metrics))
        run_metrics = {"time": total, "images/s": measurement.rate()}
        rows.append(ResultRow({"part": "whole run"}, run_metrics, measurement.note))
    return rows
