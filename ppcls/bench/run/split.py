"""Splits the wall-clock time of a training run into start-up, training, evaluation and so on.

The figures come from the run's records (metrics.jsonl) and from the moments at which it prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppcls.report.record import Record, StepRecord

PARTS = ("start-up", "training", "data wait", "evaluation", "checkpoints", "rest")
_PRINTED = ("[Train]", "[Eval]")


@dataclass(frozen=True)
class OutputLine:
    """A line that the run printed.

    Attributes:
        seconds: Time since the process was started.
        text: The line.
    """

    seconds: float
    text: str


def split_time(
    lines: Sequence[OutputLine], records: Sequence[Record], total: float, images_per_update: int
) -> dict[str, float]:
    """Returns the seconds of each of `PARTS`, which add up to ``total``.

    Start-up ends where the first batch is requested. Evaluation is the time from the last record of an epoch
    to the evaluation's record. The time from there to the next epoch, or to the run's last line, belongs to
    checkpoints. Checkpoints within an epoch count as training.

    Args:
        lines: Output of the run.
        records: Its records.
        total: Seconds from the start of the process to its end.
        images_per_update: Images per optimizer update, over all ranks.

    Raises:
        ValueError: The output does not have one line per record.
    """
    times = [line.seconds for line in lines if line.text.startswith(_PRINTED)]
    if len(times) != len(records) or not records:
        raise ValueError(f"expected one printed line per record, got {len(times)} for {len(records)} records")
    parts = dict.fromkeys(PARTS, 0.0)
    position, update, before = 0.0, 0, "start-up"
    for seconds, record in zip(times, records, strict=True):
        if isinstance(record, StepRecord):
            duration = _duration(record, record.update - update, images_per_update)
            began = min(max(position, seconds - duration), seconds)
            parts[before] += began - position
            parts["data wait"] += (seconds - began) * record.data_wait
            parts["training"] += (seconds - began) * (1 - record.data_wait)
            update, before = record.update, "checkpoints" if record.step == record.steps_per_epoch else "rest"
        else:
            parts["evaluation"] += seconds - position
            before = "checkpoints"
        position = seconds
    last = max(position, lines[-1].seconds)
    parts["checkpoints"] += last - position
    parts["rest"] += total - last
    return parts


def _duration(record: StepRecord, updates: int, images_per_update: int) -> float:
    """Returns the seconds since the previous record, from the remaining time or else from the throughput."""
    remaining = (record.epochs - record.epoch + 1) * record.steps_per_epoch - record.step
    if remaining:
        return record.eta_seconds * updates / remaining
    return updates * images_per_update / record.images_per_second
