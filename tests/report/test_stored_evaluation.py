"""The results per sample of the evaluation that a report shows survive an interruption of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import EVALUATION

from ppcls.report.html import HtmlReport, RunInfo
from ppcls.report.record import EvalRecord, LabelMistake, LabelOutcomes, Mistake, Outcomes
from ppcls.report.stored_evaluation import (
    EVALUATION_FILE,
    StoredEvaluation,
    read_evaluation,
    store_evaluation,
)
from ppcls.report.thumbnail import PictureSource

_POSITIONS = st.integers(0, 2**40)
_CLASSES = st.integers(0, 999)
_LOSSES = st.floats(0, allow_nan=False)
_SHARES = st.floats(0, 1)
_NAMES = st.text(st.characters(exclude_characters="\0"), max_size=9)


def outcomes_of(confusion: list[list[int]], mistakes: int = 0) -> Outcomes:
    return Outcomes(
        confusion=np.array(confusion),
        confidences=np.ones((2, 100), np.int64),
        mistakes=tuple(Mistake(number, 0, 1, 2.5, 0.75) for number in range(mistakes)),
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.builds(Mistake, _POSITIONS, _CLASSES, _CLASSES, _LOSSES, _SHARES), max_size=5).map(tuple),
    st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=4, max_size=4)),
    _NAMES,
)
def test_outcomes_are_stored(
    tmp_path_factory: pytest.TempPathFactory,
    mistakes: tuple[Mistake, ...],
    cells: list[int] | None,
    name: str,
) -> None:
    path = tmp_path_factory.mktemp("run") / EVALUATION_FILE
    confusion = None if cells is None else np.array(cells).reshape(2, 2)
    outcomes = Outcomes(confusion=confusion, confidences=np.arange(200).reshape(2, 100), mistakes=mistakes)
    store_evaluation(path, StoredEvaluation(3, 7, outcomes, (name,) * len(mistakes)))
    stored = read_evaluation(path)
    assert stored is not None
    assert (stored.epoch, stored.update, stored.outcomes.mistakes) == (3, 7, mistakes)
    assert stored.names == (name,) * len(mistakes)
    assert isinstance(stored.outcomes, Outcomes)
    np.testing.assert_array_equal(stored.outcomes.confidences, outcomes.confidences)
    assert (stored.outcomes.confusion is None) == (confusion is None)
    np.testing.assert_array_equal(stored.outcomes.confusion, confusion)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(
            LabelMistake,
            _POSITIONS,
            st.lists(st.tuples(_CLASSES, _SHARES), max_size=3).map(tuple),
            _CLASSES,
            _LOSSES,
        ),
        max_size=5,
    ).map(tuple)
)
def test_outcomes_of_several_labels_are_stored(
    tmp_path_factory: pytest.TempPathFactory, mistakes: tuple[LabelMistake, ...]
) -> None:
    path = tmp_path_factory.mktemp("run") / EVALUATION_FILE
    correct, predicted, true = np.arange(9).reshape(3, 3)
    outcomes = LabelOutcomes(correct=correct, predicted=predicted, true=true, mistakes=mistakes)
    store_evaluation(path, StoredEvaluation(1, 2, outcomes, ("a",) * len(mistakes)))
    stored = read_evaluation(path)
    assert stored is not None
    assert isinstance(stored.outcomes, LabelOutcomes)
    assert stored.outcomes.mistakes == mistakes
    np.testing.assert_array_equal(stored.outcomes.true, true)


def test_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / EVALUATION_FILE
    assert read_evaluation(path) is None
    store_evaluation(path, StoredEvaluation(3, 7, outcomes_of([[1, 0], [0, 1]]), ()))
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert read_evaluation(path) is None
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        read_evaluation(path)  # any result, but no error


def records_of(run: Path, *evaluations: EvalRecord, pictures: PictureSource | None = None) -> str:
    """Returns confusion.csv after a run that was interrupted before the last evaluation, and resumed."""
    info = RunInfo(pictures=pictures or PictureSource())
    *earlier, last = evaluations
    report = HtmlReport(run / "report.html", run / "events.jsonl", info)
    for record in earlier:
        report.record(record)
    report.close()
    shown = read_evaluation(run / EVALUATION_FILE)
    assert shown is not None
    resumed = HtmlReport(run / "report.html", run / "events.jsonl", info, earlier, shown)
    resumed.record(last)
    resumed.close()
    return (run / "confusion.csv").read_text("utf-8-sig")


BEST = replace(EVALUATION, epoch=1, update=9, best=True, outcomes=outcomes_of([[3, 0], [1, 2]], 1))
WORSE = replace(EVALUATION, epoch=2, update=18, best=False, outcomes=outcomes_of([[0, 3], [3, 0]], 6))
BETTER = replace(WORSE, best=True, outcomes=outcomes_of([[3, 0], [0, 3]]))


def test_a_resumed_report_keeps_the_best_evaluation(tmp_path: Path) -> None:
    assert "0,3,0" in records_of(tmp_path, BEST, WORSE)
    assert (tmp_path / "mistakes.csv").read_text("utf-8-sig").count("\n") == 2


def test_a_resumed_report_shows_a_better_evaluation(tmp_path: Path) -> None:
    table = records_of(tmp_path, BEST, BETTER)
    assert "1,0,3" in table
    stored = read_evaluation(tmp_path / EVALUATION_FILE)
    assert stored is not None
    assert stored.is_of(BETTER)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (["old/a/1.jpg", "old/b/2.jpg"], ["/new/place/a/1.jpg", "/new/place/b/2.jpg"], True),
        (["a/1.jpg", "b/2.jpg"], ["new/a/1.jpg", "new/b/2.jpg"], True),
        (["new/a/1.jpg"], ["a/1.jpg"], True),
        (["a/1.jpg"], ["a/1.jpg"], True),
        ([], [], True),
        (["old/a/1.jpg", "old/b/2.jpg"], ["new/a/1.jpg", "new/c/2.jpg"], False),
        (["old/a/1.jpg", "old/b/2.jpg"], ["new/a/1.jpg", "other/b/2.jpg"], False),
        (["old/a/1.jpg"], ["old/a/11.jpg"], False),
        (["a.tar: 1"], ["b.tar: 1"], False),
    ],
)
def test_an_evaluation_is_restored_after_the_data_moved(
    before: list[str], after: list[str], same: bool
) -> None:
    outcomes = outcomes_of([[1, 1], [1, 1]], len(before))
    shown = StoredEvaluation(1, 9, outcomes, tuple(before))
    assert shown.has_samples(dict(enumerate(after)).__getitem__) is same


def test_an_evaluation_of_other_samples_is_not_restored(tmp_path: Path) -> None:
    store_evaluation(tmp_path / EVALUATION_FILE, StoredEvaluation(1, 9, BEST.outcomes, ("other.jpg",)))
    shown = read_evaluation(tmp_path / EVALUATION_FILE)
    report = HtmlReport(tmp_path / "report.html", tmp_path / "events.jsonl", RunInfo(), [BEST], shown)
    report.record(WORSE)
    report.close()
    assert "0,0,3" in (tmp_path / "confusion.csv").read_text("utf-8-sig")


def test_an_evaluation_after_the_checkpoint_is_not_restored(tmp_path: Path) -> None:
    store_evaluation(tmp_path / EVALUATION_FILE, StoredEvaluation(5, 45, outcomes_of([[9, 9], [9, 9]]), ()))
    shown = read_evaluation(tmp_path / EVALUATION_FILE)
    report = HtmlReport(tmp_path / "report.html", tmp_path / "events.jsonl", RunInfo(), [BEST], shown)
    report.record(WORSE)
    report.close()
    assert "0,0,3" in (tmp_path / "confusion.csv").read_text("utf-8-sig")
