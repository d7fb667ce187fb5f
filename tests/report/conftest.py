from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ppcls.report.record import EvalRecord, StepRecord

STEP = StepRecord(
    epoch=3,
    epochs=20,
    step=40,
    steps_per_epoch=90,
    update=220,
    loss=0.1234,
    metrics={"top1": 0.9876},
    learning_rate=0.00123,
    images_per_second=1234.4,
    data_wait=0.03,
    eta_seconds=72.0,
)
EVALUATION = EvalRecord(
    epoch=3,
    update=270,
    loss=0.12,
    metrics={"top1": 0.9861, "top5": 1.0},
    images=360,
    seconds=1.2,
    best=True,
)


@pytest.fixture
def step() -> StepRecord:
    return STEP


@pytest.fixture
def evaluation() -> EvalRecord:
    return EVALUATION


@pytest.fixture
def run() -> Callable[[int], list[StepRecord | EvalRecord]]:
    """Gives a function that makes the records of some epochs: two of training and one evaluation each."""

    def make(epochs: int) -> list[StepRecord | EvalRecord]:
        records: list[StepRecord | EvalRecord] = []
        for epoch in range(1, epochs + 1):
            for done in (45, 90):
                update = 90 * (epoch - 1) + done
                records.append(replace(STEP, epoch=epoch, step=done, update=update, loss=1 / update))
            records.append(replace(EVALUATION, epoch=epoch, update=90 * epoch))
        return records

    return make
