from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import EVALUATION, STEP
from rich.console import Console
from runs import GUARD

from ppcls.report import console as module
from ppcls.report.console import (
    LiveConsole,
    LogFile,
    PlainConsole,
    build_console,
    clock,
    count_batches,
    format_record,
)
from ppcls.report.record import EvalRecord, StepPosition, StepRecord

NUMBER = r"(?:-?[\d.]+(?:e[-+]\d+)?|-?inf|nan)"
MEASURES = rf"loss (?P<loss>{NUMBER})(?: \w+ {NUMBER})*"
TRAIN = re.compile(
    rf"\[Train\] epoch (\d+)/(\d+) step (\d+)/(\d+) {MEASURES} lr {NUMBER} {NUMBER} img/s "
    rf"data (?P<data>{NUMBER})% eta (?:\d+:\d\d:\d\d|\?)"
)
EVAL = re.compile(rf"\[Eval\] epoch (\d+) {MEASURES} (?P<images>[\d,]+) images? {NUMBER} s(?: \(best\))?")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)")

counts = st.integers(0, 10**7)
names = st.from_regex(r"[a-z]\w{0,8}", fullmatch=True)
# Below the largest floats, which four digits round up to infinity.
numbers = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])
metrics = st.dictionaries(names, numbers, max_size=4)
steps = st.builds(
    StepRecord,
    epoch=counts,
    epochs=counts,
    step=counts,
    steps_per_epoch=counts,
    update=counts,
    loss=numbers,
    metrics=metrics,
    learning_rate=numbers,
    images_per_second=numbers,
    data_wait=st.floats(0, 1),
    eta_seconds=st.floats(max_value=1e9),
)
evaluations = st.builds(
    EvalRecord,
    epoch=counts,
    update=counts,
    loss=numbers,
    metrics=metrics,
    images=counts,
    seconds=st.floats(0, 1e9),
    best=st.booleans(),
)


def test_format_record_returns_documented_lines() -> None:
    assert format_record(STEP) == (
        "[Train] epoch 3/20 step 40/90 loss 0.1234 top1 0.9876 lr 0.00123 1234 img/s data 3% eta 0:01:12"
    )
    assert format_record(EVALUATION) == (
        "[Eval] epoch 3 loss 0.1200 top1 0.9861 top5 1.0000 360 images 1.2 s (best)"
    )


@given(steps)
def test_format_record_any_step_is_one_line(record: StepRecord) -> None:
    match = TRAIN.fullmatch(format_record(record))
    assert match, format_record(record)
    place = (record.epoch, record.epochs, record.step, record.steps_per_epoch)
    assert tuple(map(int, match.groups()[:4])) == place
    assert_close(float(match["loss"]), record.loss)
    assert abs(float(match["data"]) - 100 * record.data_wait) <= 0.5 + 1e-9


@given(evaluations)
def test_format_record_any_evaluation_is_one_line(record: EvalRecord) -> None:
    line = format_record(record)
    match = EVAL.fullmatch(line)
    assert match, line
    assert int(match["images"].replace(",", "")) == record.images
    assert_close(float(match["loss"]), record.loss)
    assert line.endswith(" (best)") == record.best


def assert_close(shown: float, value: float) -> None:
    if math.isfinite(value):
        assert shown == pytest.approx(value, rel=1e-3, abs=6e-5)
    else:
        assert str(shown) == str(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.6, "0:01:00"),
        (72, "0:01:12"),
        (3600 * 30 + 61, "30:01:01"),
        (math.nan, "?"),
        (math.inf, "?"),
        (-1, "?"),
    ],
)
def test_clock_formats_seconds(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_log_file_stamps_each_line_and_flushes(tmp_path: Path) -> None:
    def lines() -> list[str]:
        matches = [TIMESTAMP.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert all(matches)
        return [match[1] for match in matches if match]

    path = tmp_path / "train.log"
    log = LogFile(path)
    log.message("two\nlines")
    log.record(STEP)
    log.record(EVALUATION)
    expected = ["two", "lines", format_record(STEP), format_record(EVALUATION)]
    assert lines() == expected
    log.close()

    log = LogFile(path)
    log.message("appended: 5 µs")
    log.close()
    log.close()
    assert lines() == [*expected, "appended: 5 µs"]


def test_plain_console_writes_one_line_per_record() -> None:
    stream = io.StringIO()
    console = PlainConsole(stream)
    console.message("hello [bold]")
    console.record(STEP)
    console.record(EVALUATION)
    console.close()
    assert stream.getvalue().splitlines() == ["hello [bold]", format_record(STEP), format_record(EVALUATION)]


def test_build_console_without_terminal_does_not_import_rich() -> None:
    code = (
        "import sys; from ppcls.report.reporters import build_console; build_console(); "
        "sys.exit('rich' in sys.modules or 'visualdl' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveConsole), (False, PlainConsole)])
def test_build_console_depends_on_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, kind: type
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    assert isinstance(build_console(), kind)


def test_live_console_prints_lines_above_the_bar() -> None:
    stream = io.StringIO()
    console = LiveConsole(Console(file=stream, force_terminal=True, width=100, color_system=None))
    console.message("before [bold]")
    console.record(STEP)
    console.message("x" * 150)
    console.record(EVALUATION)
    console.close()
    console.close()
    shown = stream.getvalue()
    assert "before [bold]" in shown
    assert "x" * 150 in shown, "the terminal wraps long lines"
    assert format_record(EVALUATION) in shown
    for part in ("epoch 3/20", "40/90", "eta 0:01:12", "loss 0.1234 top1 0.9876", "data 3%"):
        assert part in shown
    assert shown.index(format_record(EVALUATION)) < shown.rindex("epoch 3/20"), "the bar stays below"


def test_live_console_prints_lines_below_the_bar_of_the_last_epoch() -> None:
    stream = io.StringIO()
    console = LiveConsole(Console(file=stream, force_terminal=True, width=100, color_system=None))
    console.record(replace(STEP, epoch=STEP.epochs, step=STEP.steps_per_epoch))
    console.record(EVALUATION)
    console.message("done")
    console.close()
    shown = stream.getvalue()
    assert shown.rindex("epoch 20/20") < shown.index(format_record(EVALUATION)) < shown.index("done")


def test_live_console_without_records_closes_silently() -> None:
    stream = io.StringIO()
    LiveConsole(Console(file=stream, force_terminal=True)).close()
    assert stream.getvalue() == ""


@pytest.mark.hostile
def test_build_console_drops_lines_that_nobody_reads() -> None:
    code = (
        "from ppcls.report.console import build_console; console = build_console()\n"
        "for _ in range(3000): console.message('x' * 100)\n"
        "from ppcls.files import print_error; print_error('written')"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(GUARD) == 0
        finally:
            process.kill()
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read().startswith(b"x" * 100 + b"\n")
        assert process.stderr.read() == b"written\n"


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_plain_console_shows_a_step_that_takes_long(seconds: list[float]) -> None:
    stream = io.StringIO()
    console = PlainConsole(stream)
    seconds[0] += 10
    console.advance(StepPosition(1, 2, 1, 30, 8))
    assert stream.getvalue() == ""
    seconds[0] += 10
    console.advance(StepPosition(1, 2, 2, 30, 8))
    assert stream.getvalue() == "epoch 1/2 step 2/30 0.8 img/s eta 0:09:40\n"
    console.record(STEP)
    seconds[0] += 14
    console.advance(StepPosition(1, 2, 3, 30, 8))
    assert len(stream.getvalue().splitlines()) == 2
    seconds[0] += 16
    console.advance(StepPosition(1, 2, 4, 30, 8, seconds_left=70.0))
    assert stream.getvalue().endswith(" eta 0:01:10\n")
    seconds[0] += 16
    console.advance(StepPosition(1, 2, 5, 30, 8, seconds_left=-1.0))
    assert stream.getvalue().endswith(" eta 0:00:00\n")


def test_live_console_moves_the_bar_from_the_first_step(seconds: list[float]) -> None:
    stream = io.StringIO()
    console = LiveConsole(Console(file=stream, force_terminal=True, width=100))
    seconds[0] += 4
    console.advance(StepPosition(1, 2, 1, 30, 8))
    console.close()
    assert "1/30" in stream.getvalue()
    assert "2.0 img/s" in stream.getvalue()
    assert "eta 0:03:56" in stream.getvalue()


def test_plain_console_shows_an_evaluation_that_takes_long(seconds: list[float]) -> None:
    stream = io.StringIO()
    console = PlainConsole(stream)
    for batch in range(1, 5):
        seconds[0] += 8
        console.advance_evaluation(batch, 4)
    assert stream.getvalue() == "evaluation: batch 2/4\nevaluation: batch 4/4\n"


def test_live_console_shows_an_evaluation_and_then_the_epoch_again(seconds: list[float]) -> None:
    stream = io.StringIO()
    console = LiveConsole(Console(file=stream, force_terminal=True, width=100, color_system=None))
    console.record(STEP)
    seconds[0] += 1
    console.advance_evaluation(3, 7)
    console.record(EVALUATION)
    console.close()
    shown = stream.getvalue()
    assert "evaluation" in shown
    assert shown.index("40/90") < shown.index("3/7") < shown.rindex("40/90")


def test_count_batches_writes_lines_without_a_terminal(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with count_batches("comparison", 3) as after_batch:
        for _ in range(3):
            seconds[0] += 8
            after_batch()
    assert capsys.readouterr().err == "comparison: batch 2/3\n"


def test_count_batches_draws_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with count_batches("comparison", 3) as after_batch:
        after_batch()
    out = capsys.readouterr()
    assert "comparison" in out.err
    assert "1/3" in out.err
    assert out.out == ""
