"""Stores the results per sample of the evaluation that a report shows, for the report of a resumed run.

Decisions:
    One file beside the report, not a part of checkpoints: the best evaluation can be older than the
    checkpoint from which a run resumes, and commands that read checkpoints do not need it.
    NumPy's archive without pickled objects, because the columns of 50,000 mistakes are arrays.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.files import atomic_write, read_regular
from ppcls.files.damaged import NUMPY_ERRORS
from ppcls.report.jsonlines import read_history
from ppcls.report.record import EvalRecord, LabelMistake, LabelOutcomes, Mistake, Outcomes

EVALUATION_FILE = "evaluation.npz"


@dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation with its results per sample.

    Attributes:
        epoch: Number of finished epochs.
        update: Number of optimizer updates.
        outcomes: Results per sample.
        names: Name of the sample of each mistake, in the same order.
    """

    epoch: int
    update: int
    outcomes: Outcomes | LabelOutcomes
    names: tuple[str, ...]

    def has_samples(self, name: Callable[[int], str]) -> bool:
        """Returns whether a data set still has the samples of the mistakes at the same positions.

        The folder of the data set may have moved.

        Args:
            name: Function that returns the name of a sample. It raises IndexError for a missing one.
        """
        try:
            names = tuple(name(mistake.position) for mistake in self.outcomes.mistakes)
        except IndexError:
            return False
        return len(names) == len(self.names) and _differ_by_folder(self.names, names)

    def is_of(self, record: EvalRecord) -> bool:
        """Returns whether a record is that of this evaluation."""
        return (record.epoch, record.update) == (self.epoch, self.update)


def _differ_by_folder(before: Sequence[str], after: Sequence[str]) -> bool:
    """Returns whether names are equal if one folder at their start is replaced by another one."""
    if tuple(before) == tuple(after):
        return True
    common = zip(reversed(before[0].split("/")), reversed(after[0].split("/")), strict=False)
    kept = "/".join(
        reversed([old for old, _ in itertools.takewhile(lambda parts: parts[0] == parts[1], common)])
    )
    old = before[0][: len(before[0]) - len(kept)]
    new = after[0][: len(after[0]) - len(kept)]
    return bool(kept) and all(
        was.startswith(old) and now == new + was[len(old) :] for was, now in zip(before, after, strict=True)
    )


def store_evaluation(path: Path, evaluation: StoredEvaluation) -> None:
    """Writes an evaluation atomically.

    Raises:
        OSError: The file can't be written.
    """
    outcomes = evaluation.outcomes
    arrays = {
        "position": np.array([evaluation.epoch, evaluation.update]),
        "names": np.array(evaluation.names, np.str_),
    }
    arrays |= _from_outcomes(outcomes) if isinstance(outcomes, Outcomes) else _from_labels(outcomes)
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # arrays have no names of its options


def read_evaluation(path: Path) -> StoredEvaluation | None:
    """Returns a stored evaluation; None if the file is missing or damaged.

    A report without the evaluation shows the next one instead, so a damaged file needs no error.
    """
    try:
        with np.load(io.BytesIO(read_regular(path)), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        epoch, update = arrays["position"].tolist()
        names = tuple(arrays["names"].tolist())
        outcomes = _to_outcomes(arrays) if "confidences" in arrays else _to_labels(arrays)
    except NUMPY_ERRORS:
        return None
    return StoredEvaluation(epoch, update, outcomes, names)


def read_best_evaluation(run: Path) -> StoredEvaluation | None:
    """Returns the best evaluation of a run with its results per sample; None if they are not stored.

    Args:
        run: Output folder of the run.
    """
    stored = read_evaluation(run / EVALUATION_FILE)
    best = None if stored is None else read_history(run / "metrics.jsonl").best
    return stored if stored is not None and best is not None and stored.is_of(best) else None


def _from_outcomes(outcomes: Outcomes) -> dict[str, NDArray[Any]]:
    rows = [
        (each.position, each.label, each.predicted, each.loss, each.confidence) for each in outcomes.mistakes
    ]
    arrays = {"confidences": outcomes.confidences, "mistakes": np.array(rows, np.float64).reshape(-1, 5)}
    return arrays if outcomes.confusion is None else {**arrays, "confusion": outcomes.confusion}


def _to_outcomes(arrays: Mapping[str, NDArray[Any]]) -> Outcomes:
    return Outcomes(
        confusion=arrays.get("confusion"),
        confidences=arrays["confidences"],
        mistakes=tuple(
            Mistake(int(position), int(label), int(predicted), loss, confidence)
            for position, label, predicted, loss, confidence in arrays["mistakes"].tolist()
        ),
    )


def _from_labels(outcomes: LabelOutcomes) -> dict[str, NDArray[Any]]:
    mistakes = outcomes.mistakes
    labels = [(*label, number) for number, each in enumerate(mistakes) for label in each.labels]
    return {
        "counts": np.stack([outcomes.correct, outcomes.predicted, outcomes.true]),
        "mistakes": np.array(
            [(each.position, each.wrong, each.loss) for each in mistakes], np.float64
        ).reshape(-1, 3),
        "labels": np.array(labels, np.float64).reshape(-1, 3),
    }


def _to_labels(arrays: Mapping[str, NDArray[Any]]) -> LabelOutcomes:
    correct, predicted, true = arrays["counts"]
    labels: dict[int, list[tuple[int, float]]] = {}
    for label, probability, number in arrays["labels"].tolist():
        labels.setdefault(int(number), []).append((int(label), probability))
    return LabelOutcomes(
        correct=correct,
        predicted=predicted,
        true=true,
        mistakes=tuple(
            LabelMistake(int(position), tuple(labels.get(number, [])), int(wrong), loss)
            for number, (position, wrong, loss) in enumerate(arrays["mistakes"].tolist())
        ),
    )
