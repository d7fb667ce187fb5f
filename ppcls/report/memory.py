"""What a run really takes of the GPU's memory, told once."""

from __future__ import annotations

from collections.abc import Callable

from ppcls.report.record import EvalRecord, Reporter, StepRecord


class MemoryUse:
    """Tells ``to`` what ``measure`` says, once all pipelines have run: after the first evaluation.

    Args:
        measure: Returns the line to tell.
        evaluates: Whether the run evaluates; otherwise the end of the first epoch will do.
        to: Who is told.
    """

    def __init__(self, measure: Callable[[], str], evaluates: bool, to: Reporter) -> None:
        self._measure: Callable[[], str] | None = measure
        self._evaluates = evaluates
        self._to = to

    def message(self, text: str) -> None:
        """Does nothing: a message takes no GPU memory."""

    def train(self, record: StepRecord) -> None:
        """Measures at the end of the first epoch of a run that never evaluates."""
        if not self._evaluates and record.step == record.steps_per_epoch:
            self._tell()

    def evaluation(self, record: EvalRecord) -> None:  # noqa: ARG002
        """Measures after the first evaluation."""
        self._tell()

    def close(self) -> None:
        """Does nothing."""

    def _tell(self) -> None:
        if self._measure is not None:
            self._to.message(self._measure())
            self._measure = None
