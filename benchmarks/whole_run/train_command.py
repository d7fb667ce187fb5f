"""Runs the training command in a new process, and measures how its wall-clock time is spent.

The durations are computed from the run's records (metrics.jsonl) and from the times at which it prints them.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Timer

from ppcls.bench.measure.runner import RATE, Candidate
from ppcls.bench.results.schema import ResultRow
from ppcls.engine.autotune.processes import (
    MeasurementFailed,
    Sample,
    end_process,
    exit_text,
    last_lines,
    started_process,
)
from ppcls.files.temporary import temporary_folder
from ppcls.recipe.schema import Config
from ppcls.report.jsonlines import read_records
from ppcls.report.record import Record, StepRecord
from ppcls.runtime.launch import ppcls_command

PARTS = ("start-up", "training", "data wait", "evaluation", "checkpoints", "rest")
_PRINTED = ("[Train]", "[Eval]")


@dataclass(frozen=True)
class OutputLine:
    """Line that the run printed.

    Attributes:
        seconds: Seconds since the start of the process.
        text: Text of the line.
    """

    seconds: float
    text: str


def split_time(
    lines: Sequence[OutputLine], records: Sequence[Record], total: float, images_per_update: int
) -> dict[str, float]:
    """Returns the seconds of each of `PARTS`, which add up to ``total``.

    Start-up ends when the first batch is requested. Evaluation is the time from the last record of an epoch
    to the record of the evaluation. The time from that record to the next epoch, or to the run's last line,
    counts as checkpoints. Checkpoints within an epoch count as training.

    Args:
        lines: Output of the run.
        records: Records of the run.
        total: Seconds from the start of the process to its end.
        images_per_update: Images per optimizer update, over all ranks.

    Raises:
        ValueError: The output does not have one line per record.
    """
    times = [line.seconds for line in lines if line.text.startswith(_PRINTED)]
    if len(times) != len(records) or not records:
        raise ValueError(f"expected one printed line per record, got {len(times)} for {len(records)} records")
    parts = dict.fromkeys(PARTS, 0.0)
    position = 0.0
    update = 0
    before = "start-up"
    for seconds, record in zip(times, records, strict=True):
        if isinstance(record, StepRecord):
            duration = _duration(record, record.update - update, images_per_update)
            began = min(max(position, seconds - duration), seconds)
            parts[before] += began - position
            parts["data wait"] += (seconds - began) * record.data_wait
            parts["training"] += (seconds - began) * (1 - record.data_wait)
            update = record.update
            before = "checkpoints" if record.step == record.steps_per_epoch else "rest"
        else:
            parts["evaluation"] += seconds - position
            before = "checkpoints"
        position = seconds
    last = max(position, lines[-1].seconds)
    parts["checkpoints"] += last - position
    parts["rest"] += total - last
    return parts


def _duration(record: StepRecord, updates: int, images_per_update: int) -> float:
    """Returns the seconds since the previous record, computed from the remaining time or the throughput."""
    remaining = (record.epochs - record.epoch + 1) * record.steps_per_epoch - record.step
    if remaining:
        return record.eta_seconds * updates / remaining
    return updates * images_per_update / record.images_per_second


def run_training(config: Config, path: str, overrides: Sequence[str], timeout: float) -> Sample:
    """Trains once in a temporary output folder. Returns the seconds of each part, and images per second.

    Raises:
        MeasurementFailed: The run failed, or exceeded the timeout.
    """
    images_per_update = config.DataLoader.need_train().sampler.rows(1) * config.Global.update_freq
    with temporary_folder("benchmark") as folder:
        output_dir = folder / "run"
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
    """Runs a command. Returns its output with times, and the seconds until it ended."""
    began = time.perf_counter()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with started_process(command, {"PYTHONUNBUFFERED": "1"}, **pipes) as process:
        assert process.stdout is not None  # because of PIPE
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
        reason = f"not finished after {timeout:g} s" if total >= timeout else exit_text(code)
        raise MeasurementFailed(reason, last_lines([line.text for line in lines]))
    return lines, total


def make_rows(measured: Sequence[Candidate[str]]) -> list[ResultRow]:
    """Returns one row per part of the wall-clock time, and one row for the whole run."""
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
