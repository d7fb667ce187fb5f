from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from ppcls.report.console import LiveConsole, PlainConsole, build_console
from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.text import describe


def test_plain_lines(step: StepRecord, evaluation: EvalRecord) -> None:
    stream = io.StringIO()
    console = PlainConsole(stream)
    console.message("hello [bold]")
    console.train(step)
    console.evaluation(evaluation)
    console.close()
    assert stream.getvalue().splitlines() == ["hello [bold]", describe(step), describe(evaluation)]


def test_without_a_terminal_rich_is_not_even_imported() -> None:
    code = (
        "import sys; from ppcls.report.build import build_console; build_console(); "
        "sys.exit('rich' in sys.modules or 'visualdl' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)


def test_a_terminal_gets_the_live_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(build_console(), LiveConsole)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert isinstance(build_console(), PlainConsole)


def test_live_bar_and_lines(step: StepRecord, evaluation: EvalRecord) -> None:
    stream = io.StringIO()
    console = LiveConsole(Console(file=stream, force_terminal=True, width=100, color_system=None))
    console.message("before [bold]")
    console.train(step)
    console.message("x" * 150)
    console.evaluation(evaluation)
    console.close()
    console.close()
    shown = stream.getvalue()
    assert "before [bold]" in shown
    assert "x" * 150 in shown, "long lines are left to the terminal to wrap"
    assert describe(evaluation) in shown
    for part in ("epoch 3/20", "40/90", "eta 0:01:12", "loss 0.1234 top1 0.9876", "data 3%"):
        assert part in shown
    assert shown.index(describe(evaluation)) < shown.rindex("epoch 3/20"), "the bar stays below"


def test_live_console_that_showed_nothing_closes_silently() -> None:
    stream = io.StringIO()
    LiveConsole(Console(file=stream, force_terminal=True)).close()
    assert stream.getvalue() == ""
