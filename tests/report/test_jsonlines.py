from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import EVALUATION, STEP, make_records

from ppcls.errors import UserError
from ppcls.report import jsonlines
from ppcls.report.jsonlines import (
    Event,
    EventsFile,
    MetricsFile,
    from_line,
    read_events,
    read_records,
    to_line,
    truncate_after,
)
from ppcls.report.record import Outcomes, Record


def write(path: Path, records: Sequence[Record]) -> None:
    writer = MetricsFile(path)
    for record in records:
        writer.record(record)
    writer.close()


@given(st.floats(), st.floats(), st.text())
def test_to_line_is_strict_json_and_from_line_restores_it(loss: float, value: float, name: str) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    def finite(number: float) -> float:
        return number if math.isfinite(number) else math.nan

    for record in (STEP, EVALUATION):
        record = replace(record, loss=loss, metrics={name: value})
        line = to_line(record)
        assert line.count("\n") == 1
        assert json.loads(line, parse_constant=refuse)["kind"] in ("train", "eval")
        restored = from_line(line)
        known = replace(record, loss=finite(loss), metrics={name: finite(value)})
        assert repr(asdict(restored)) == repr(asdict(known))


def test_to_line_omits_outcomes() -> None:
    outcomes = Outcomes(np.eye(3, dtype=np.int64), np.zeros((2, 100), np.int64), ())
    assert to_line(replace(EVALUATION, outcomes=outcomes)) == to_line(EVALUATION)
    assert from_line(to_line(EVALUATION)) == EVALUATION


def test_metrics_file_flushes_each_record_and_appends(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsFile(path)
    writer.message("not a record")
    writer.record(STEP)
    assert read_records(path) == [STEP]
    writer.close()
    write(path, make_records(2))
    assert read_records(path) == [STEP, *make_records(2)]


def test_missing_metrics_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none") == []
    truncate_after(tmp_path / "none", 5)
    assert not (tmp_path / "none").exists()


def test_read_records_ignores_only_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, make_records(1))
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for cut in range(2, len(last) + 1):
        path.write_bytes(whole[:-cut])
        assert read_records(path) == make_records(1)[:-1]
    path.write_bytes(whole[:-1])
    assert read_records(path) == make_records(1), "only its line break is missing"


@pytest.mark.parametrize("line", ["{", "3", "{}", '{"kind": "test"}', '{"kind": "eval", "loss": 1}'])
def test_read_records_names_a_bad_line_before_the_last(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(to_line(STEP) + line + "\n" + to_line(STEP))
    with pytest.raises(UserError, match=r"metrics.jsonl:2: invalid record: "):
        read_records(path)


@given(update=st.integers(0, 400))
def test_truncate_after_keeps_updates_ascending(
    tmp_path_factory: pytest.TempPathFactory, update: int
) -> None:
    records = [replace(STEP, update=number) for number in range(10, 300, 10)]
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write(path, records)
    with path.open("a") as file:
        file.write('{"kind": "tr')
    truncate_after(path, update)
    assert read_records(path) == [record for record in records if record.update <= update]
    write(path, [replace(STEP, update=update + 1)])
    updates = [record.update for record in read_records(path)]
    assert updates == sorted(set(updates))
    assert len(list(path.parent.iterdir())) == 1


def texts(path: Path, last: int = 100) -> list[tuple[int, str]]:
    return [(event.update, event.text) for event in read_events(path, last)]


def test_events_file_keeps_time_and_update_of_messages(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_events(path, 5) == []
    events = EventsFile(path, update=7)
    events.message("resumed\nat </script> ü")
    events.record(STEP)
    events.message("a step was skipped")
    events.record(EVALUATION)
    assert texts(path) == [(7, "resumed\nat </script> ü"), (220, "a step was skipped")], "there at once"
    events.message("stopped by SIGTERM", update=274)
    events.message("done")
    events.close()
    events.close()
    assert texts(path, last=2) == [(274, "stopped by SIGTERM"), (270, "done")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", event.time) for event in read_events(path, 9))


def test_events_file_cut_by_a_crash_loses_one_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = EventsFile(path)
    for text in ("one", "two"):
        events.message(text)
    events.close()
    path.write_bytes(path.read_bytes()[:-9])
    assert texts(path) == [(0, "one")]
    events = EventsFile(path)
    events.message("three")
    events.close()
    assert texts(path) == [(0, "one"), (0, "three")]
    path.write_text('{"time": "t"}\n[1]\n' + '{"time": "t", "update": 3, "text": "x"}\n')
    assert read_events(path, 5) == [Event("t", 3, "x")]


@given(st.lists(st.sampled_from([b'{"kind": "eval"', b"x", b"\n", b'"kind"']), max_size=12))
def test_line_starts_agree_with_a_regular_expression(parts: list[bytes]) -> None:
    block = b"".join(parts)
    expected = [match.start() for match in re.finditer(rb'^\{"kind": "eval"', block, re.MULTILINE)]
    assert jsonlines._line_starts(block, b'{"kind": "eval"') == expected


def test_records_of_older_versions_lack_the_number_of_images() -> None:
    line = json.loads(to_line(STEP))
    del line["images"]
    assert from_line(json.dumps(line)) == replace(STEP, images=0)
    del line["loss"]
    with pytest.raises(ValueError, match="expected the fields"):
        from_line(json.dumps(line))
