"""Records of a small run, for tests of reports."""

from __future__ import annotations

from dataclasses import replace

from ppcls.report.record import EvalRecord, Record, StepRecord

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


def make_records(epochs: int) -> list[Record]:
    """Returns the records of some epochs: two of training and one evaluation per epoch."""
    records: list[Record] = []
    for epoch in range(1, epochs + 1):
        for done in (45, 90):
            update = 90 * (epoch - 1) + done
            records.append(replace(STEP, epoch=epoch, step=done, update=update, loss=1 / update))
        records.append(replace(EVALUATION, epoch=epoch, update=90 * epoch))
    return records
