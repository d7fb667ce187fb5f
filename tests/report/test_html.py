from __future__ import annotations

import errno
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from browser import needs_chromium, opened
from matplotlib.axes import Axes

import ppcls.report.html
from ppcls.report.build import build_reporters
from ppcls.report.curves import draw_curves
from ppcls.report.html import About, HtmlReport, summary
from ppcls.report.record import EvalRecord, Mistake, Outcomes, StepRecord
from ppcls.report.thumbnail import Picture

from .test_reporters import tell

Run = Callable[[int], list[StepRecord | EvalRecord]]
ABOUT = About(
    "ResNet <u>18</u>", "Global:\n  epochs: 3 # </pre></script>\n", {"ppcls": "1"}, {"Device": "CPU"}
)


def report(folder: Path) -> HtmlReport:
    return HtmlReport(folder / "report.html", folder / "events.jsonl", ABOUT)


def text(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_it_is_there_from_the_first_record_on(tmp_path: Path, run: Run) -> None:
    page = report(tmp_path)
    page.message("nothing to show yet")
    assert not (tmp_path / "report.html").exists()
    tell(page, run(1)[:1])
    said = re.search(r">last record here at (.*); the run had not ended then: load", text(tmp_path))
    assert said is not None, "whether it goes on, or was killed, no page can tell"
    assert datetime.strptime(said[1], "%Y-%m-%d %H:%M:%S") <= datetime.now()
    tell(page, run(1)[1:])
    assert "0.9861 (epoch 1)" in text(tmp_path), "the evaluation is in it"
    page.close()
    assert re.search(r">as of [-0-9]+ [:0-9]+; the run has ended<", text(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_everything_written_is_escaped(tmp_path: Path, run: Run) -> None:
    bad = tmp_path / "bad_images.txt"
    bad.write_text("<i>a.jpg</i>\tno image\n")
    reporters = build_reporters(tmp_path, False, None, about=replace(ABOUT, bad_images=bad))
    reporters.message("resumed from </table><script>alert(1)</script>")
    tell(reporters, [replace(each, metrics={"</script><u>": 0.5}) for each in run(1)])
    reporters.close()
    page = text(tmp_path)
    for part in ("<u>", "<i>", "<script>alert", "</pre></script>"):
        assert part not in page
    assert "resumed from &lt;/table&gt;" in page
    assert "&lt;i&gt;a.jpg&lt;/i&gt;\tno image" in page


def test_names_that_are_no_text_cost_nothing(tmp_path: Path, run: Run) -> None:
    class Odd(TwoPictures):
        def evaluated(self, position: int) -> Picture | None:
            return Picture(np.zeros((2, 2, 3), np.uint8), "", "caf\udce9.jpg")

    page = HtmlReport(tmp_path / "report.html", tmp_path / "none", replace(ABOUT, pictures=Odd()))
    evaluation = run(1)[-1]
    assert isinstance(evaluation, EvalRecord)
    tell(page, [replace(evaluation, outcomes=outcomes(None))])
    assert 'title="caf?.jpg"' in text(tmp_path)


def test_a_page_names_nothing_outside_of_itself(tmp_path: Path) -> None:
    page = report(tmp_path)
    page.close()
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!["']?data:)""", text(tmp_path))
    assert not re.search(r"@import|url\(", text(tmp_path))


def test_page_and_picture_have_the_same_colours(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda *args, **style: drawn.append(style["color"]) or plot(*args, **style)
    )
    draw_curves(run(1), tmp_path / "curves.png")
    page = report(tmp_path)
    tell(page, run(1))
    told = re.search(r'"colours": (\[.*?\])', text(tmp_path))
    assert told is not None
    assert json.loads(told[1])[:2] == drawn[:2], "of the loss, as it trains and as it is evaluated"
    assert text(tmp_path).count(drawn[1]) == 1


def test_a_resumed_run_keeps_its_curves_and_its_events(tmp_path: Path, run: Run) -> None:
    for resumed, records in ((None, run(1)), (90, run(2)[3:])):
        reporters = build_reporters(tmp_path, False, resumed)
        reporters.message(f"from update {resumed}")
        tell(reporters, records)
        reporters.close()
    page = text(tmp_path)
    assert "from update None" in page
    assert "from update 90" in page
    assert '"x": [0.5, 1.0, 1.5, 2.0]' in page
    build_reporters(tmp_path, False, None).close()
    assert "from update" not in text(tmp_path), "a run from the start has no earlier events"


def test_a_loss_that_is_no_number_is_a_gap_and_counted(tmp_path: Path, step: StepRecord) -> None:
    page = report(tmp_path)
    tell(page, [step, replace(step, step=60, loss=math.nan), replace(step, step=90)])
    assert '"y": [0.1234, null, 0.1234]' in text(tmp_path)
    assert "Gaps: no finite loss in 1 of 3 training records." in text(tmp_path)


def test_writing_has_a_budget(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost, writes = [0.0], 0.5, []

    def write_text(path: Path, page: str) -> None:
        writes.append(now[0])
        now[0] += cost

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ppcls.report.html, "write_text", write_text)
    page = report(tmp_path)
    for record in run(100):
        now[0] += 5
        tell(page, [record])
    assert len(writes) * cost <= 2 + cost + 0.01 * now[0]
    assert writes[-1] > 0.9 * now[0], "it goes on all the time"
    page.close()
    assert writes[-1] == now[0] - cost, "the end is always written"


def test_a_full_disk_costs_the_report_alone(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, page: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ppcls.report.html, "write_text", full)
    reporters = build_reporters(tmp_path, False, None)
    tell(reporters, run(2))
    reporters.close()
    assert capsys.readouterr().err == "HtmlReport: No space left on device; the run goes on without\n"


def test_the_summary_is_of_the_latest_and_the_best(run: Run, step: StepRecord) -> None:
    shown = summary([*run(2), replace(run(2)[-1], epoch=3, best=False, metrics={"top1": 0.5})])
    assert shown["Epochs"] == "2 of 20"
    assert (shown["Eval top1"], shown["Best top1"]) == ("0.5000", "0.9861 (epoch 2)")
    assert "Time left" in shown
    assert "Time left" not in summary(run(2), ended=True)
    assert summary([]) == {}
    assert summary([replace(step, loss=math.nan)])["Train loss"] == "nan"


class TwoPictures:
    """A grey training image; samples of the evaluation but for the third."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def augmented(self) -> list[Picture]:
        return [Picture(np.full((4, 4, 1), 99, np.uint8), "0.7 cat + 0.3 <u>")]

    def evaluated(self, position: int) -> Picture | None:
        self.read.append(position)
        return Picture(np.full((4, 4, 3), 9, np.uint8), "", f"{position}.jpg") if position != 3 else None


def outcomes(confusion: list[list[int]] | None) -> Outcomes:
    return Outcomes(
        None if confusion is None else np.array(confusion),
        np.zeros((2, 100), np.int64),
        (Mistake(5, 0, 1, 4.5, 0.9), Mistake(3, 1, 0, 2.0, 0.8)),
    )


def test_mistakes_are_read_once_an_evaluation_and_only_to_be_written(tmp_path: Path, run: Run) -> None:
    pictures = TwoPictures()
    about = replace(ABOUT, classes=("cat", "<u>"), pictures=pictures)
    page = HtmlReport(tmp_path / "report.html", tmp_path / "none", about)
    step, _, evaluation = run(1)
    assert isinstance(evaluation, EvalRecord)
    tell(page, [step, replace(evaluation, outcomes=outcomes([[3, 2], [1, 0]]))])
    page.render()
    assert pictures.read == [5, 3]
    shown = text(tmp_path)
    assert "Confusion, epoch 1" in shown
    assert "cat, taken for &lt;u&gt; (90%), loss 4.5" in shown
    assert shown.count("<figure") == 2, "one can't be read, one is augmented"
    assert "<u>" not in shown
    tell(page, [replace(evaluation, outcomes=outcomes(None))])
    assert "too many classes" in text(tmp_path)
    assert pictures.read == [5, 3, 5, 3]


def test_a_finished_run_that_is_started_again_keeps_its_page(tmp_path: Path, run: Run) -> None:
    page = report(tmp_path)
    tell(page, run(1))
    page.close()
    before = text(tmp_path)
    again = report(tmp_path)
    again.message("nothing left to do")
    again.close()
    assert text(tmp_path) == before


@needs_chromium
def test_confusion_and_pictures_in_a_browser(tmp_path: Path, run: Run) -> None:
    about = replace(ABOUT, classes=("cat", "<u>"), pictures=TwoPictures())
    page = HtmlReport(tmp_path / "report.html", tmp_path / "none", about)
    evaluation = run(1)[-1]
    assert isinstance(evaluation, EvalRecord)
    tell(page, [*run(1)[:-1], replace(evaluation, outcomes=outcomes([[3, 2], [1, 0]]))])
    page.close()
    with opened(tmp_path / "report.html") as shown:
        for place in ("rows", "columns"):
            assert shown.page.locator(f".named .{place} span").all_inner_texts() == ["cat", "<u>"]
        matrix = shown.page.locator("#matrix")
        row, cell = shown.page.locator(".named .rows span").first.bounding_box(), matrix.bounding_box()
        assert row is not None
        assert cell is not None
        assert (row["y"], row["height"]) == (cell["y"] + 1, 32), "a name is beside its row"
        matrix.hover(position={"x": 48, "y": 16})
        assert shown.page.locator("#cell").inner_text() == "cat, taken for <u>: 2 of 5"
        matrix.hover(position={"x": 48, "y": 48})
        assert shown.page.locator("#cell").inner_text() == "<u>, taken for <u>: 0 of 1"
        assert shown.page.locator("#pairs tr").nth(1).inner_text() == "cat\t<u>\t2\t40.0%"
        for gallery in ("#worst", "#augmented"):
            picture = shown.page.locator(f"{gallery} img")
            assert picture.evaluate("each => each.complete && each.naturalWidth") == 4


@needs_chromium
def test_in_a_browser(tmp_path: Path, run: Run) -> None:
    reporters = build_reporters(tmp_path, False, None, about=ABOUT)
    reporters.message("resumed from epoch 3")
    tell(reporters, run(3))
    reporters.close()
    with opened(tmp_path / "report.html") as shown:
        loss = shown.page.locator("[data-title=Loss]")
        loss.locator(".u-over").hover()
        values = loss.locator(".u-legend .u-value").all_inner_texts()
        assert values == ["1.5", "0.0074074", "0.12"], "epoch, train, and the nearest evaluation"
        elsewhere = shown.page.locator("[data-title='Learning rate'] .u-legend .u-value").all_inner_texts()
        assert elsewhere == ["1.5", "0.00123"], "the other charts' cursors follow"
        marker = shown.page.locator("[data-title=top5] .u-series .u-marker").last
        red = marker.evaluate("each => getComputedStyle(each).borderTopColor")
        assert red == "rgb(214, 96, 77)", "as where there is a curve of training beside it"
        assert shown.page.evaluate("[27240000000000000, 500000].map(format)") == ["2.724e+16", "500000"]

        assert shown.page.evaluate("alone([1, null, 2, undefined, null, 3, 4])") == [0, 2], "between gaps"

        ticks = "document.querySelector('[data-title=Loss] .u-wrap canvas').toDataURL()"
        linear = shown.page.evaluate(ticks)
        loss.locator("input").check()
        assert shown.page.evaluate(ticks) != linear, "a log scale"
        log = shown.page.evaluate(ticks)
        box = loss.locator(".u-over").bounding_box()
        assert box is not None
        shown.page.mouse.move(box["x"] + 20, box["y"] + 50)
        shown.page.mouse.down()
        shown.page.mouse.move(box["x"] + 150, box["y"] + 60)
        shown.page.mouse.up()
        shown.page.wait_for_function(f"before => {ticks} !== before", arg=log)  # zoomed
        assert shown.page.locator("#events").inner_text().endswith("resumed from epoch 3")
        assert shown.page.locator("#config").inner_text() == ABOUT.config
        assert shown.page.title() == ABOUT.name


@needs_chromium
def test_without_records_in_a_browser(tmp_path: Path) -> None:
    page = report(tmp_path)
    page.close()
    with opened(tmp_path / "report.html") as shown:
        assert shown.page.locator("#charts").inner_text() == "no records yet"
