"""The records of a run, thinned so that their number and the work of each drawing are bounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ppcls.report.record import EvalRecord, Record, StepRecord

_SECTIONS = 1000  # sections of the run in which the extremes of each curve are kept
_MAX_STEPS = 30_000  # number of training records from which they are thinned
_MAX_EVALUATIONS = 10_000
_Kind = TypeVar("_Kind", StepRecord, EvalRecord)


class History:
    """Records of a run in chronological order.

    All records are kept until there are 30,000 of training, or 10,000 of evaluations. From then on, the run
    is divided into 1,000 sections. The smallest and the largest value of each curve and a gap remain of each
    section, so that the charts stay the same to the eye.

    Args:
        records: The first records.

    Attributes:
        last_step: Latest record of training; None if there is none.
        last_evaluation: Latest record of an evaluation; None if there is none.
        best: Record of the best evaluation; None if there is none.
        losses: Numbers of training records and of evaluations, including those that are no longer kept.
        gaps: The same of records without a finite loss.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._steps: list[StepRecord] = []
        self._evaluations: list[EvalRecord] = []
        self.last_step: StepRecord | None = None
        self.last_evaluation: EvalRecord | None = None
        self.best: EvalRecord | None = None
        self.losses: dict[type[Record], int] = {StepRecord: 0, EvalRecord: 0}
        self.gaps: dict[type[Record], int] = {StepRecord: 0, EvalRecord: 0}
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._steps) + len(self._evaluations)

    def __iter__(self) -> Iterator[Record]:
        """Yields the records of training, and then those of evaluations."""
        return chain(self._steps, self._evaluations)

    @property
    def steps(self) -> Sequence[StepRecord]:
        """Records of training."""
        return self._steps

    @property
    def evaluations(self) -> Sequence[EvalRecord]:
        """Records of evaluations."""
        return self._evaluations

    def add(self, record: Record) -> None:
        """Adds the next record."""
        self.losses[type(record)] += 1
        self.gaps[type(record)] += not math.isfinite(record.loss)
        if isinstance(record, StepRecord):
            self.last_step = record
            self._steps.append(record)
            if len(self._steps) > _MAX_STEPS:
                self._steps = _thin(self._steps, _step_values(record))
            return
        record = replace(record, outcomes=None)
        self.last_evaluation = record
        self.best = record if record.best else self.best
        self._evaluations.append(record)
        if len(self._evaluations) > _MAX_EVALUATIONS:
            self._evaluations = _thin(self._evaluations, [_loss, *_metric_values(record)[:1]])

    def count_earlier(self, steps: int, gaps: int) -> None:
        """Adds records of training to the counts without keeping them."""
        self.losses[StepRecord] += steps
        self.gaps[StepRecord] += gaps

    def copy(self) -> History:
        """Returns a copy, for another thread."""
        other = History()
        other.__dict__ |= self.__dict__
        other._steps = [*self._steps]
        other._evaluations = [*self._evaluations]
        return other


def _loss(record: Record) -> float:
    return record.loss


def _metric_values(record: Record) -> list[Callable[[Record], float]]:
    """Returns functions that return the values of the first metrics."""
    names = [*islice(record.metrics, 4)]
    return [lambda record, name=name: record.metrics.get(name, math.nan) for name in names]  # type: ignore[misc]


def _step_values(record: StepRecord) -> list[Callable[..., float]]:
    return [
        _loss,
        *_metric_values(record),
        lambda record: record.learning_rate,
        lambda record: record.images_per_second,
        lambda record: record.data_wait,
    ]


def _thin(records: list[_Kind], values: Sequence[Callable[..., float]]) -> list[_Kind]:
    """Returns the first and last record, and those with an extreme or a gap of a curve in its section."""
    kept = {0, len(records) - 1}
    sections = np.array_split(np.arange(len(records)), _SECTIONS)
    for value in values:
        curve = np.array([value(record) for record in records], np.float64)
        for section in sections:
            kept.update(_extremes(section, curve))
    return [records[at] for at in sorted(kept)]


def _extremes(section: NDArray[np.int64], curve: NDArray[np.float64]) -> list[int]:
    is_finite = np.isfinite(curve[section])
    finite = section[is_finite]
    extremes = [finite[curve[finite].argmin()], finite[curve[finite].argmax()]] if len(finite) else []
    return [int(at) for at in (*extremes, *section[~is_finite][:1])]
