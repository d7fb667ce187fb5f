"""Long runs: the number of kept records, of parsed lines and of drawings is bounded."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ppcls.report import charts, history, jsonlines
from ppcls.report.charts import MAX_METRICS, CurvesPicture, build_charts, describe_gaps
from ppcls.report.history import History
from ppcls.report.jsonlines import read_history, read_records, to_line, truncate_after
from ppcls.report.record import EvalRecord, Record, StepRecord

STEP = StepRecord(1, 9, 1, 50, 1, 2.5, {"top1": 0.5}, 0.1, 900.0, 0.01, 60.0)
EVALUATION = EvalRecord(1, 1, 1.5, {"top1": 0.6}, 100, 2.0, best=True)
COUNT = 3000


def step(update: int, loss: float = 1.0) -> StepRecord:
    return replace(STEP, epoch=1 + (update - 1) // 50, step=1 + (update - 1) % 50, update=update, loss=loss)


def records() -> list[Record]:
    """Returns training records, with an evaluation after every 50th, a spike and a gap."""
    result: list[Record] = []
    for update in range(1, COUNT + 1):
        loss = {1777: 999.0, 1999: math.nan}.get(update, 1 + 1 / update)
        result.append(step(update, loss))
        if update % 50 == 0:
            result.append(replace(EVALUATION, epoch=update // 50, update=update, best=update == 100))
    return result


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small files and short runs be treated like large ones."""
    for name, value in {"_LARGE": 1000, "_BLOCK": 20_000, "_SCANNED": 3000, "_SAMPLES": 200}.items():
        monkeypatch.setattr(jsonlines, name, value)
    for name, value in {"_SECTIONS": 20, "_MAX_STEPS": 500, "_MAX_EVALUATIONS": 200}.items():
        monkeypatch.setattr(history, name, value)


@pytest.mark.usefixtures("small")
def test_a_history_is_bounded_and_keeps_spikes_gaps_and_counts() -> None:
    kept = History()
    largest = 0
    for record in records():
        kept.add(record)
        largest = max(largest, len(kept))
    assert largest <= 700
    assert len(kept.evaluations) == COUNT // 50
    losses = [record.loss for record in kept.steps]
    assert max(loss for loss in losses if math.isfinite(loss)) == 999.0
    assert any(map(math.isnan, losses))
    assert [record.update for record in kept.steps] == sorted({record.update for record in kept.steps})
    assert kept.best is not None
    assert kept.best.update == 100
    assert kept.last_step == step(COUNT, 1 + 1 / COUNT)
    assert describe_gaps(kept) == f"Gaps: no finite loss in 1 of {COUNT} training records."


@pytest.mark.usefixtures("small")
def test_a_long_history_is_not_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(to_line, records())))
    expected = History(records())
    parsed = 0
    parse = jsonlines.from_line

    def count(line: str) -> Record:
        nonlocal parsed
        parsed += 1
        return parse(line)

    monkeypatch.setattr(jsonlines, "from_line", count)
    read = read_history(path)
    assert parsed < 600
    assert [*read.evaluations] == [*expected.evaluations]
    assert (read.best, read.last_step) == (expected.best, expected.last_step)
    assert describe_gaps(read) == describe_gaps(expected)
    assert max(record.loss for record in read.steps if math.isfinite(record.loss)) == 999.0
    monkeypatch.setattr(jsonlines, "_LARGE", 1 << 30)
    assert [*read_history(path).evaluations] == [*expected.evaluations]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("last", [0, 1, 49, 50, 51, 1234, 2999, COUNT, COUNT + 9])
@pytest.mark.parametrize("end", ["", '{"kind": "tra', "damaged\n"])
def test_a_large_file_is_truncated_like_a_small_one(
    last: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(to_line, records())) + end)
    parsed = 0
    parse = jsonlines.from_line

    def count(line: str) -> Record:
        nonlocal parsed
        parsed += 1
        return parse(line)

    with monkeypatch.context() as patch:
        patch.setattr(jsonlines, "from_line", count)
        truncate_after(path, last)
    assert parsed < 60
    assert path.read_text() == "".join(to_line(record) for record in records() if record.update <= last)
    monkeypatch.setattr(jsonlines, "_LARGE", 1 << 30)
    assert len(read_records(path)) == sum(record.update <= last for record in records())
    kept = tmp_path / "metrics.jsonl.damaged"
    if last >= COUNT or end != "damaged\n":
        assert kept.exists() == (end == "damaged\n")


@pytest.mark.usefixtures("small")
def test_damaged_lines_do_not_stop_the_truncation(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [to_line(record) if number % 3 else "{}\n" for number, record in enumerate(records())]
    path.write_text("".join(lines))
    truncate_after(path, 1500)
    last = max(
        at
        for at, (line, record) in enumerate(zip(lines, records(), strict=True))
        if len(line) > 3 and record.update <= 1500
    )
    assert path.read_text() == "".join(lines[: last + 1])


def test_the_charts_of_a_thousand_classes_are_bounded() -> None:
    metrics = {"top1": 0.5, **{f"recall/{label}": 0.1 for label in range(1000)}}
    drawn = build_charts([STEP, replace(EVALUATION, metrics=metrics)])
    assert len(drawn) == MAX_METRICS + 4
    assert drawn[1].title == "top1"
    assert drawn[MAX_METRICS].note == f"{1001 - MAX_METRICS} more metrics are in metrics.jsonl."


@pytest.mark.usefixtures("drawn_curves")
def test_pictures_are_drawn_in_a_thread_within_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    started, release = threading.Event(), threading.Event()

    def draw(records: History, path: Path, title: str, majority: float | None) -> None:
        threads.append(threading.current_thread().name)
        started.set()
        assert release.wait(60)
        path.write_text(str(len(records)))

    monkeypatch.setattr(charts, "draw_charts", draw)
    monkeypatch.setattr(charts, "_INTERVAL", -1.0)
    picture = CurvesPicture(tmp_path / "curves.png")
    picture.record(EVALUATION)
    assert started.wait(60)
    for _ in range(5):
        picture.record(EVALUATION)  # does not wait for the drawing
    assert len(threads) == 1
    release.set()
    picture.close()
    assert threads[0].startswith("curves")
    assert threads[1:] == ["MainThread"]
    assert (tmp_path / "curves.png").read_text() == "6"
    picture.close()
    assert len(threads) == 2


@pytest.mark.usefixtures("drawn_curves")
def test_a_slow_picture_is_drawn_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing takes 30 s here, and an evaluation follows every minute."""
    now = 0.0
    drawings: list[float] = []

    def draw(records: History, path: Path, title: str, majority: float | None) -> None:
        nonlocal now
        drawings.append(now)
        now += 30

    monkeypatch.setattr(charts, "draw_charts", draw)
    monkeypatch.setattr("ppcls.report.charts.time.monotonic", lambda: now)
    monkeypatch.setattr("ppcls.report.record.time.monotonic", lambda: now)
    picture = CurvesPicture(tmp_path / "curves.png")
    for _ in range(1000):
        now += 60
        picture.record(EVALUATION)
        picture._wait()
    assert len(drawings) >= 2
    assert 30 * len(drawings) <= 1 + 30 + 0.01 * now


@pytest.mark.usefixtures("drawn_curves")
def test_an_error_in_the_thread_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "_INTERVAL", -1.0)
    (tmp_path / "file").touch()
    picture = CurvesPicture(tmp_path / "file" / "curves.png")
    picture.record(EVALUATION)
    with pytest.raises(OSError, match="Not a directory"):
        picture.close()


def test_the_range_of_a_curve_does_not_depend_on_thinning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MAX_STEPS", 2500)
    values = np.random.default_rng(0).normal(size=9000)
    long = [step(update + 1, float(value)) for update, value in enumerate(values)]
    thinned = build_charts(History(long))[0].curves[0]
    whole = build_charts(long)[0].curves[0]
    assert (min(thinned.y), max(thinned.y)) == (min(whole.y), max(whole.y))  # type: ignore[type-var]
