"""A reporter and checkpoints that record their calls."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from ppcls.engine.core.state import TrainState
from ppcls.report.record import EvalRecord, Record, StepRecord


class Notes:
    """Records the calls of a reporter and of checkpoints."""

    def __init__(self, said: list[str] | None = None) -> None:
        self._said = said
        self.steps: list[StepRecord] = []
        self.evaluations: list[EvalRecord] = []
        self.saved: list[tuple[int, list[str]]] = []
        self.order: list[str] = []
        self.evaluated: list[tuple[int, int]] = []

    def advance(self, position: object) -> None:
        pass

    def advance_evaluation(self, batch: int, batches: int) -> None:
        self.evaluated.append((batch, batches))

    def message(self, text: str, update: int | None = None) -> None:
        if self._said is None:
            raise AssertionError(text)
        self._said.append(text)

    def record(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.steps.append(record)
        else:
            self.evaluations.append(record)
        self.order.append("log" if isinstance(record, StepRecord) else "evaluation")

    def close(self) -> None:
        raise AssertionError

    def save(
        self, state: TrainState, roles: Iterable[str], score: float | None = None, **_options: bool
    ) -> None:
        self.saved.append((state.update, list(roles)))
        self.order.append("checkpoint")

    def finished(self) -> AbstractContextManager[None]:
        """Nothing is written in the background."""
        return nullcontext()

    def newest_intact(self) -> None:
        """None is kept."""
