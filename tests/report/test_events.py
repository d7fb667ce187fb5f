from __future__ import annotations

import re
from pathlib import Path

from ppcls.report.events import Event, Events, read_events
from ppcls.report.record import EvalRecord, StepRecord


def texts(path: Path, last: int = 100) -> list[tuple[int, str]]:
    return [(each.update, each.text) for each in read_events(path, last)]


def test_messages_come_back_with_their_time_and_place(
    tmp_path: Path, step: StepRecord, evaluation: EvalRecord
) -> None:
    path = tmp_path / "events.jsonl"
    assert read_events(path, 5) == []
    events = Events(path, update=7)
    events.message("resumed\nat </script> ü")
    events.train(step)
    events.message("a step was skipped")
    events.evaluation(evaluation)
    assert texts(path) == [(7, "resumed\nat </script> ü"), (220, "a step was skipped")], "there at once"
    events.message("done")
    events.close()
    events.close()
    assert texts(path, last=2) == [(220, "a step was skipped"), (270, "done")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", each.time) for each in read_events(path, 9))


def test_a_line_that_a_crash_has_cut_costs_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path)
    for text in ("one", "two"):
        events.message(text)
    events.close()
    path.write_bytes(path.read_bytes()[:-9])
    assert texts(path) == [(0, "one")]
    events = Events(path)
    events.message("three")
    events.close()
    assert texts(path) == [(0, "one"), (0, "three")]
    path.write_text('{"time": "t"}\n[1]\n' + '{"time": "t", "update": 3, "text": "x"}\n')
    assert read_events(path, 5) == [Event("t", 3, "x")]
