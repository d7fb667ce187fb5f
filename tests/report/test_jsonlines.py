from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.errors import UserError
from ppcls.report.jsonlines import JsonLines, from_line, read_records, to_line, truncate_after
from ppcls.report.record import EvalRecord, Outcomes, StepRecord

from .conftest import EVALUATION, STEP

Run = Callable[[int], list[StepRecord | EvalRecord]]


def write(path: Path, records: list[StepRecord | EvalRecord]) -> None:
    writer = JsonLines(path)
    for record in records:
        if isinstance(record, StepRecord):
            writer.train(record)
        else:
            writer.evaluation(record)
    writer.close()


@given(st.floats(), st.floats(), st.text())
def test_a_line_is_strict_json_and_gives_the_record_back(loss: float, value: float, name: str) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    for record in (STEP, EVALUATION):
        record = replace(record, loss=loss, metrics={name: value})
        line = to_line(record)
        assert line.count("\n") == 1
        assert json.loads(line, parse_constant=refuse)["kind"] in ("train", "eval")
        back = from_line(line)
        known = replace(record, loss=finite(loss), metrics={name: finite(value)})
        assert repr(asdict(back)) == repr(asdict(known))


def finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def test_what_became_of_each_sample_is_not_kept() -> None:
    outcomes = Outcomes(np.eye(3, dtype=np.int64), np.zeros((2, 100), np.int64), ())
    assert to_line(replace(EVALUATION, outcomes=outcomes)) == to_line(EVALUATION)
    assert from_line(to_line(EVALUATION)) == EVALUATION


def test_records_come_back_in_order_and_are_there_at_once(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonLines(path)
    writer.message("not a record")
    writer.train(STEP)
    assert read_records(path) == [STEP]
    writer.close()
    write(path, run(2))
    assert read_records(path) == [STEP, *run(2)]


def test_no_file_means_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none") == []
    truncate_after(tmp_path / "none", 5)
    assert not (tmp_path / "none").exists()


def test_a_last_line_cut_anywhere_costs_that_line_alone(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, run(1))
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(2, len(last) + 1):
        path.write_bytes(whole[:-cut])
        assert read_records(path) == run(1)[:-1]
    path.write_bytes(whole[:-1])
    assert read_records(path) == run(1), "only its line break is missing"


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"kind": "test"}', '{"kind": "eval", "loss": 1}'])
def test_a_bad_line_before_the_last_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(to_line(STEP) + line + "\n" + to_line(STEP))
    with pytest.raises(UserError, match=r"metrics.jsonl:2: not a record of a run"):
        read_records(path)


@given(update=st.integers(0, 400))
def test_a_resumed_run_never_goes_back_in_time(tmp_path_factory: pytest.TempPathFactory, update: int) -> None:
    records = [replace(STEP, update=each) for each in range(10, 300, 10)]
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write(path, [*records])
    with path.open("a") as file:
        file.write('{"kind": "tr')
    truncate_after(path, update)
    kept = [each for each in records if each.update <= update]
    assert read_records(path) == kept
    write(path, [replace(STEP, update=update + 1)])
    updates = [each.update for each in read_records(path)]
    assert updates == sorted(set(updates))
    assert len(list(path.parent.iterdir())) == 1
