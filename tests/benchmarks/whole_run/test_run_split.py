"""Wall-clock time of a run, split by its records and the times of its lines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_records import EVALUATION, STEP

from benchmarks.whole_run.train_command import OutputLine, split_time
from ppcls.report.record import EvalRecord, StepRecord


def step(epoch: int, number: int, eta: float, wait: float = 0.25) -> StepRecord:
    """Returns a record of a run of 2 epochs with 10 updates each."""
    position = {"epoch": epoch, "epochs": 2, "step": number, "steps_per_epoch": 10}
    update = 10 * (epoch - 1) + number
    return replace(STEP, **position, update=update, data_wait=wait, eta_seconds=eta, images_per_second=20.0)


def evaluation(epoch: int) -> EvalRecord:
    return replace(EVALUATION, epoch=epoch, update=10 * epoch)


RECORDS = [step(1, 5, 12.0), step(1, 10, 20.0), evaluation(1), step(2, 10, 0.0), evaluation(2)]
LINES = [
    OutputLine(3.0, "Paddle 3.3.1 on CPU\n"),
    OutputLine(14.0, "[Train] epoch 1/2 step 5/10\n"),  # 12 s remain for 15 updates: the first 5 took 4 s
    OutputLine(24.0, "[Train] epoch 1/2 step 10/10\n"),  # 20 s remain for 10 updates: these 5 took 10 s
    OutputLine(30.0, "[Eval] epoch 1\n"),
    OutputLine(42.0, "[Train] epoch 2/2 step 10/10\n"),  # 10 updates of 16 images at 20 images/s: 8 s
    OutputLine(47.0, "[Eval] epoch 2\n"),
    OutputLine(50.0, "done: 2 epochs\n"),
]


def test_split_time_assigns_every_second() -> None:
    parts = split_time(LINES, RECORDS, 51.5, images_per_update=16)
    assert parts == pytest.approx(
        {
            "start-up": 10.0,
            "training": 0.75 * 22.0,
            "data wait": 0.25 * 22.0,
            "evaluation": 11.0,
            "checkpoints": 4.0 + 3.0,
            "rest": 1.5,
        }
    )
    assert sum(parts.values()) == pytest.approx(51.5)


def test_split_time_without_evaluation_checkpoints_follow_training() -> None:
    lines = [line for line in LINES if not line.text.startswith("[Eval]")]
    records = [record for record in RECORDS if isinstance(record, StepRecord)]
    parts = split_time(lines, records, 51.5, images_per_update=16)
    assert (parts["evaluation"], parts["checkpoints"]) == (0.0, pytest.approx(10.0 + 8.0))


def test_split_time_long_estimate_never_reaches_before_the_last_record() -> None:
    parts = split_time(LINES, [step(1, 5, 999.0), *RECORDS[1:]], 51.5, images_per_update=10**6)
    assert parts["start-up"] == 0.0
    assert parts["checkpoints"] == pytest.approx(3.0)
    assert sum(parts.values()) == pytest.approx(51.5)


@pytest.mark.parametrize(("lines", "records"), [(LINES[:2], RECORDS), ([], [])])
def test_split_time_output_without_the_records_is_rejected(
    lines: list[OutputLine], records: list[StepRecord | EvalRecord]
) -> None:
    with pytest.raises(ValueError, match="expected one printed line per record"):
        split_time(lines, records, 1.0, 1)
