from __future__ import annotations

import errno
import json
import math
import re
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from browser import needs_chromium, opened
from matplotlib.colors import to_hex
from report_records import EVALUATION, STEP, make_records

import ppcls.report.html
from ppcls.errors import UserError
from ppcls.report.charts import COLOURS
from ppcls.report.html import HtmlReport, RunInfo, summarize_run
from ppcls.report.record import LabelMistake, LabelOutcomes, Mistake, Outcomes, Record, Reporter
from ppcls.report.reporters import build_reporters
from ppcls.report.thumbnail import Picture, PictureSource

INFO = RunInfo(
    "ResNet <u>18</u>", "Global:\n  epochs: 3 # </pre></script>\n", {"ppcls": "1"}, {"Device": "CPU"}
)


def build_report(folder: Path, info: RunInfo = INFO, earlier: list[Record] | None = None) -> HtmlReport:
    return HtmlReport(folder / "report.html", folder / "events.jsonl", info, earlier or [])


def report(reporter: Reporter, records: list[Record]) -> None:
    for record in records:
        reporter.record(record)


def text(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_report_exists_from_the_first_record(tmp_path: Path) -> None:
    page = build_report(tmp_path)
    page.message("nothing to show yet")
    assert not (tmp_path / "report.html").exists()
    report(page, make_records(1)[:1])
    updated = re.search(r">Last update: (.*)\. The run had not ended at this time\.", text(tmp_path))
    assert '<meta http-equiv="refresh" content="30">' in text(tmp_path)
    assert updated is not None
    assert datetime.strptime(updated[1], "%Y-%m-%d %H:%M:%S") <= datetime.now()
    report(page, make_records(1)[1:])
    assert "0.9861 (epoch 1)" in text(tmp_path), "the evaluation is in it"
    page.close()
    assert re.search(r">Written at [-0-9]+ [:0-9]+\. The run has ended before its last epoch", text(tmp_path))
    assert 'http-equiv="refresh"' not in text(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_report_of_a_stopped_run_has_its_last_update(tmp_path: Path) -> None:
    page = build_report(tmp_path)
    report(page, make_records(1)[:-2])
    page.message("update 12345: stopped by SIGINT", 12345)
    page.close()
    assert ">Updates</span><b>12,345<" in text(tmp_path)
    assert "The run has ended before its last epoch; see the last event." in text(tmp_path)


def test_report_escapes_all_text(tmp_path: Path) -> None:
    bad = tmp_path / "bad_images.txt"
    bad.write_text("<i>a.jpg</i>\tno image \x1b[31m\u202e\n")
    reporters = build_reporters(tmp_path, False, None, info=replace(INFO, bad_images=bad))
    reporters.message("resumed from </table><script>alert(1)</script>")
    report(reporters, [replace(record, metrics={"</script><u>": 0.5}) for record in make_records(1)])
    reporters.close()
    page = text(tmp_path)
    for part in ("<u>", "<i>", "<script>alert", "</pre></script>"):
        assert part not in page
    assert "resumed from &lt;/table&gt;" in page
    assert "&lt;i&gt;a.jpg&lt;/i&gt;\tno image \\x1b[31m\\u202e" in page


def test_report_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build_report(tmp_path).close()
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!["']?data:)""", text(tmp_path))
    assert not re.search(r"@import|url\(", text(tmp_path))


def test_resumed_report_keeps_curves_and_events(tmp_path: Path) -> None:
    for resumed, records in ((None, make_records(1)), (90, make_records(2)[3:])):
        reporters = build_reporters(tmp_path, False, resumed)
        reporters.message(f"from update {resumed}")
        report(reporters, records)
        reporters.close()
    page = text(tmp_path)
    assert "from update None" in page
    assert "from update 90" in page
    assert '"x": [0.5, 1.0, 1.5, 2.0]' in page
    assert "Duration since the resume" in page
    build_reporters(tmp_path, False, None).close()
    assert "from update" not in text(tmp_path), "a run from scratch has no earlier events"


def test_nonfinite_loss_is_a_gap_and_counted(tmp_path: Path) -> None:
    page = build_report(tmp_path)
    report(page, [STEP, replace(STEP, step=60, loss=math.nan), replace(STEP, step=90)])
    assert '"y": [0.1234, null, 0.1234]' in text(tmp_path)
    assert "Gaps: no finite loss in 1 of 3 training records." in text(tmp_path)


def test_writing_respects_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, cost, writes = [0.0], 0.5, []

    def write_text(path: Path, page: str) -> None:
        writes.append(now[0])
        now[0] += cost

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ppcls.report.html, "write_text", write_text)
    page = build_report(tmp_path)
    for record in make_records(100):
        now[0] += 5
        page.record(record)
    assert len(writes) * cost <= 2 + cost + 0.01 * now[0]
    assert writes[-1] > 0.9 * now[0], "it continues all the time"
    page.close()
    assert writes[-1] == now[0] - cost, "the end is always written"


def test_full_disk_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path, page: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ppcls.report.html, "write_text", fail)
    reporters = build_reporters(tmp_path, False, None)
    report(reporters, make_records(2))
    reporters.close()
    error = capsys.readouterr().err
    assert error == "HtmlReport: No space left on device; the run continues without this report\n"


def test_a_last_batch_of_few_images_decides_neither_the_loss_nor_the_advice(tmp_path: Path) -> None:
    whole = replace(STEP, step=9, steps_per_epoch=10, update=9, images=288, loss=0.5, metrics={"top1": 0.99})
    rest = replace(whole, step=10, update=10, images=2, loss=9.5, metrics={"top1": 0.0})
    assert summarize_run([whole, rest])["Train loss"] == f"{0.5 + 9 * 2 / 290:.4g}"
    assert summarize_run([rest])["Train loss"] == "9.5"
    outcomes = Outcomes(np.array([[900, 100], [20, 980]]), np.zeros((2, 100), np.int64), ())
    report = HtmlReport(tmp_path / "report.html", tmp_path / "events.jsonl", RunInfo())
    for record in (whole, rest, replace(EVALUATION, outcomes=outcomes)):
        report.record(record)
    report.close()
    page = text(tmp_path)
    assert "look for wrong labels of" in page
    assert "so train longer" not in page


def test_summarize_run_shows_latest_and_best() -> None:
    worse = replace(EVALUATION, epoch=3, best=False, metrics={"top1": 0.5})
    tiles = summarize_run([*make_records(2), worse])
    assert tiles["Epochs"] == "2 of 20"
    assert (tiles["Eval top1"], tiles["Best top1"]) == ("0.5000", "0.9861 (epoch 2)")
    assert "Time left" in tiles
    assert "Time left" not in summarize_run(make_records(2), ended=True)
    assert summarize_run([]) == {}
    assert summarize_run([replace(STEP, loss=math.nan)])["Train loss"] == "nan"


def test_report_shows_the_duration_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    page = build_report(tmp_path)
    now[0] += 3723
    page.close()
    assert '<span class="faint">Duration</span><b>1:02:03</b>' in text(tmp_path)


class TwoPictures(PictureSource):
    """A grey training image, and all samples of the evaluation except the third."""

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


def test_mistakes_are_read_once_per_evaluation(tmp_path: Path) -> None:
    pictures = TwoPictures()
    page = build_report(tmp_path, replace(INFO, classes=("cat", "<u>"), pictures=pictures))
    evaluation = replace(EVALUATION, epoch=1, outcomes=outcomes([[3, 2], [1, 0]]))
    report(page, [STEP, evaluation])
    page.render()
    assert pictures.read == [5, 3]
    shown = text(tmp_path)
    assert "cat, predicted as &lt;u&gt; (90%), loss 4.5" in shown
    assert shown.count("<figure") == 2, "one cannot be read, one is augmented"
    assert "<u>" not in shown
    page.record(replace(evaluation, outcomes=outcomes(None)))
    assert "there are too many classes" in text(tmp_path)
    assert pictures.read == [5, 3, 5, 3]


def test_report_of_several_labels_shows_scores_per_label_and_worst_errors(tmp_path: Path) -> None:
    counts = np.array([[3, 0, 0, 8], [4, 2, 0, 8], [6, 0, 0, 8]])
    worst = (
        LabelMistake(5, ((1, 0.98), (0, 0.03)), 2, 4.1),
        LabelMistake(3, ((0, 0.2),), 1, 2.0),
    )
    info = replace(INFO, classes=("cat", "<u>", "unused", "sky"), pictures=TwoPictures())
    page = build_report(tmp_path, info)
    evaluation = replace(EVALUATION, epoch=1, best=True, outcomes=LabelOutcomes(*counts, worst))
    report(page, [STEP, evaluation])
    page.finish()
    page.close()
    shown = text(tmp_path)
    assert "Precision and recall per label, best model, epoch" in shown
    assert "Confusion matrix" not in shown
    assert "Reliability diagram" not in shown
    table = re.search(r'<table id="labels">(.*?)</table>', shown, re.DOTALL)
    assert table is not None
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table[1].split("<tr>")[2:]]
    assert rows == [
        ["&lt;u&gt;", "0.0%", "0.0%", "0.0%", "0", "2", "0"],
        ["cat", "75.0%", "50.0%", "60.0%", "3", "4", "6"],
        ["sky", "100.0%", "100.0%", "100.0%", "8", "8", "8"],
    ]
    assert "missed: cat (3%); wrong: &lt;u&gt; (98%); loss 4.1" in shown
    assert "missed: cat (20%)" not in shown, "its image cannot be read"


@pytest.mark.usefixtures("drawn_heat_maps")
@pytest.mark.parametrize("best", [True, False])
def test_finished_run_shows_heat_maps_of_the_best_model(tmp_path: Path, best: bool) -> None:
    class PicturesWithHeatMap(TwoPictures):
        def explained(self, position: int, class_id: int) -> Picture | None:
            assert (position, class_id) == (5, 1), "the predicted class of the mistake that can be read"
            return Picture(np.full((4, 4, 3), 200, np.uint8), "")

    page = build_report(tmp_path, replace(INFO, pictures=PicturesWithHeatMap()))
    report(page, [STEP, replace(EVALUATION, best=best, outcomes=outcomes([[3, 2], [1, 0]]))])
    page.finish()
    page.close()
    assert text(tmp_path).count('alt="heat map"') == best
    assert ("Heat maps show the pixels" in text(tmp_path)) == best


@pytest.mark.usefixtures("drawn_heat_maps")
def test_report_names_the_reason_for_missing_heat_maps(tmp_path: Path) -> None:
    class PicturesWithoutHeatMap(TwoPictures):
        def explained(self, position: int, class_id: int) -> Picture | None:
            raise UserError("heat map: Net has no feature map before its logits")

    page = build_report(tmp_path, replace(INFO, pictures=PicturesWithoutHeatMap()))
    page.record(replace(EVALUATION, best=True, outcomes=outcomes(None)))
    page.finish()
    page.close()
    assert "There are no heat maps: Net has no feature map before its logits." in text(tmp_path)


@pytest.mark.parametrize(
    ("best", "title"),
    [
        ([True, False], "Confusion matrix, best model, epoch 1"),
        ([True, True], "Confusion matrix, best model, epoch 2"),
        ([False, False], "Confusion matrix, epoch 2"),
    ],
)
def test_confusion_matrix_is_of_the_best_model(tmp_path: Path, best: list[bool], title: str) -> None:
    page = build_report(tmp_path)
    for epoch, is_best in enumerate(best, start=1):
        page.record(replace(EVALUATION, epoch=epoch, best=is_best, outcomes=outcomes([[3, 2], [1, 0]])))
    assert f"<h2>{title}</h2>" in text(tmp_path)


def test_file_name_of_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    class InvalidName(TwoPictures):
        def evaluated(self, position: int) -> Picture | None:
            return Picture(np.zeros((2, 2, 3), np.uint8), "", "caf\udce9.jpg")

    page = build_report(tmp_path, replace(INFO, pictures=InvalidName()))
    page.record(replace(EVALUATION, outcomes=outcomes(None)))
    assert 'title="caf?.jpg"' in text(tmp_path)


def test_finished_run_started_again_keeps_its_page(tmp_path: Path) -> None:
    page = build_report(tmp_path)
    report(page, make_records(1))
    page.close()
    before = text(tmp_path)
    again = build_report(tmp_path)
    again.message("nothing left to do")
    again.close()
    assert text(tmp_path) == before


@needs_chromium
def test_browser_shows_confusion_and_pictures(tmp_path: Path) -> None:
    page = build_report(tmp_path, replace(INFO, classes=("cat", "<u>"), pictures=TwoPictures()))
    report(page, [*make_records(1)[:-1], replace(EVALUATION, outcomes=outcomes([[3, 2], [1, 0]]))])
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
        assert shown.page.locator("#cell").inner_text() == "cat, predicted as <u>: 2 of 5"
        matrix.hover(position={"x": 48, "y": 48})
        assert shown.page.locator("#cell").inner_text() == "<u>, predicted as <u>: 0 of 1"
        assert shown.page.locator("#pairs tr").nth(1).inner_text() == "cat\t<u>\t2\t40.0%"
        recalls = shown.page.locator("#recalls tr").all_inner_texts()
        assert recalls[1:] == ["<u>\t0.0%\t0\t1", "cat\t60.0%\t3\t5"]
        for gallery in ("#worst", "#augmented"):
            picture = shown.page.locator(f"{gallery} img")
            assert picture.evaluate("image => image.complete && image.naturalWidth") == 4


@needs_chromium
def test_browser_places_tables_beside_the_matrix_and_cuts_nothing_off_on_a_phone(tmp_path: Path) -> None:
    page = build_report(tmp_path, replace(INFO, name="runs/" + 40 * "name_", classes=("cat", "dog")))
    report(page, [*make_records(1)[:-1], replace(EVALUATION, outcomes=outcomes([[3, 2], [1, 0]]))])
    page.close()
    with opened(tmp_path / "report.html") as shown:
        shown.page.set_viewport_size({"width": 1280, "height": 900})
        tops = "[...document.querySelectorAll('.columns:has(#cell) > div')].map(box => box.offsetTop)"
        assert len(set(shown.page.evaluate(tops))) == 1
        shown.page.set_viewport_size({"width": 390, "height": 900})
        shown.page.wait_for_function("() => document.documentElement.scrollWidth === 390")  # charts resize


@needs_chromium
def test_browser_draws_charts(tmp_path: Path) -> None:
    reporters = build_reporters(tmp_path, False, None, info=INFO)
    reporters.message("resumed from epoch 3")
    report(reporters, make_records(3))
    reporters.close()
    with opened(tmp_path / "report.html") as shown:
        loss = shown.page.locator("[data-title=Loss]")
        values = loss.locator(".u-legend .u-value").all_inner_texts()
        assert "–" not in values, "the last values, as long as the mouse is elsewhere"
        loss.locator(".u-over").hover()
        values = loss.locator(".u-legend .u-value").all_inner_texts()
        assert values == ["1.5", "0.0074074", "0.12"], "epoch, train, and the nearest evaluation"
        others = shown.page.locator("[data-title='Learning rate'] .u-legend .u-value").all_inner_texts()
        assert others == ["1.5", "0.00123"], "the cursors of other charts follow"
        marker = shown.page.locator("[data-title=top5] .u-series .u-marker").last
        colour = marker.evaluate("marker => getComputedStyle(marker).borderTopColor")
        assert to_hex([int(part) / 255 for part in re.findall(r"\d+", colour)]) == COLOURS["eval"]
        assert shown.page.evaluate("[27240000000000000, 500000].map(format)") == ["2.724e+16", "500000"]
        assert shown.page.evaluate("alone([1, null, 2, undefined, null, 3, 4])") == [0, 2], "between gaps"

        canvas = "document.querySelector('[data-title=Loss] .u-wrap canvas').toDataURL()"
        linear = shown.page.evaluate(canvas)
        loss.locator("input").check()
        log = shown.page.evaluate(canvas)
        assert log != linear
        box = loss.locator(".u-over").bounding_box()
        assert box is not None
        shown.page.mouse.move(box["x"] + 20, box["y"] + 50)
        shown.page.mouse.down()
        shown.page.mouse.move(box["x"] + 150, box["y"] + 60)
        shown.page.mouse.up()
        shown.page.wait_for_function(f"before => {canvas} !== before", arg=log)  # zoomed
        light = shown.page.evaluate(canvas)
        shown.page.emulate_media(color_scheme="dark")
        shown.page.wait_for_function(f"before => {canvas} !== before", arg=light)
        background = "getComputedStyle(document.body).backgroundColor"
        assert shown.page.evaluate(background) == "rgb(20, 23, 28)"
        assert shown.page.locator("#events").inner_text().endswith("resumed from epoch 3")
        assert shown.page.locator("#config").inner_text() == INFO.config
        assert shown.page.title() == INFO.name


@needs_chromium
def test_browser_limits_the_axis_to_usual_losses_and_whole_epochs(tmp_path: Path) -> None:
    page = build_report(tmp_path)
    losses = [1e4, *np.linspace(2, 1, 30)]
    for step, loss in enumerate(losses, start=1):
        page.record(replace(STEP, epoch=1, step=step, steps_per_epoch=31, loss=float(loss)))
    page.close()
    data = re.search(r'id="data">(.*?)</script>', text(tmp_path))
    assert data is not None
    assert json.loads(data[1])["charts"][0]["top"] == 2
    with opened(tmp_path / "report.html") as shown:
        assert "1 point is higher" in shown.page.locator("[data-title=Loss] .faint").inner_text()
        ranges = shown.page.evaluate(
            "[[1, 1e4], [5, 1e4], [1, 2]].map(([low, high]) => valueRange(data.charts[0])({}, low, high)[1])"
        )
        assert ranges[0] < 3, "the outlier is outside"
        assert ranges[1] > 1e4, "zoomed to the outlier"
        assert ranges[2] < 3
        assert shown.page.evaluate("epochSteps.every(Number.isInteger)")


@needs_chromium
def test_browser_without_records_says_so(tmp_path: Path) -> None:
    build_report(tmp_path).close()
    with opened(tmp_path / "report.html") as shown:
        assert shown.page.locator("#charts").inner_text() == "There are no records yet."
