"""The report page, and the folder with all result files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from browser import needs_chromium, opened
from example_results import RESULTS

from ppcls.bench.results.charts import COLOURS
from ppcls.bench.results.page import publish, render_page
from ppcls.bench.results.schema import read_results


def test_publish_writes_all_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    charts = publish(folder, RESULTS)
    assert [each.name for each in charts] == ["01-speed-by-threads.png", "02-stages-each-alone.png"]
    assert {each.name for each in folder.iterdir()} == {
        "results.json",
        "results.csv",
        "index.html",
        *(each.name for each in charts),
    }
    assert read_results(folder) == RESULTS
    publish(folder, RESULTS)


def test_page_escapes_all_text() -> None:
    page = render_page(RESULTS)
    for part in ("<old>", "<more>", "<memory>", "</pre></script>"):
        assert part not in page
    assert "out of &lt;memory&gt; [b]" in page
    assert "-c &#39;my config.yaml&#39;" in page


def test_page_uses_the_colours_of_the_pictures() -> None:
    assert [part for part in COLOURS if part in render_page(RESULTS)] == [*COLOURS[:2]], "of two series"


def test_page_references_nothing_outside() -> None:
    page = render_page(RESULTS)
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!["']?data:)""", page)
    assert not re.search(r"@import|url\(", page)


@needs_chromium
def test_page_in_a_browser_is_interactive(tmp_path: Path) -> None:
    publish(tmp_path, RESULTS)
    with opened(tmp_path / "index.html") as shown:
        page = shown.page
        assert page.locator("#findings").inner_text() == "Use 2 threads & no <more>."
        line = page.locator("[data-title='Speed by threads']")
        line.locator("circle").nth(1).hover()
        assert line.locator(".value").inner_text() == "DALI, threads 2: 1,000 ±10% images/s"
        line.get_by_role("button", name="DALI").click()
        assert line.locator("circle").count() == 1
        bars = page.locator("[data-title='Stages, each alone']")
        bars.locator("rect").nth(1).hover()
        assert bars.locator(".value").inner_text() == "stage decode: 1,234 images/s"

        table = page.locator("table.results").first
        assert table.locator("td.number").nth(1).get_attribute("title") == "1,000, 900, 1,100"
        table.get_by_text("throughput").click()
        assert [row.split("\t")[2] for row in table.locator("tbody tr").all_inner_texts()] == [
            "1,000 ±10%",
            "510 ±2%",
            "400",
            "",
        ], "largest first, missing values last"
        assert page.locator("#config").inner_text() == RESULTS.config


@needs_chromium
def test_page_without_rows_in_a_browser(tmp_path: Path) -> None:
    publish(tmp_path, replace(RESULTS, rows=(), charts=(), findings=()))
    with opened(tmp_path / "index.html") as shown:
        assert "nothing was measured" in shown.page.locator("body").inner_text()
