"""The report page, and the folder with all result files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from browser import needs_chromium, opened
from example_results import RESULTS

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
    page = render_page(RESULTS, {})
    for part in ("<old>", "<more>", "<memory>", "</pre></script>"):
        assert part not in page
    assert "out of &lt;memory&gt; [b]" in page
    assert "-c &#39;my config.yaml&#39;" in page


def test_page_references_nothing_outside() -> None:
    page = render_page(RESULTS, {"Speed": b"PNG"})
    assert not re.search(r"""(src|href)\s*=\s*["']?(?!["']?data:)""", page)
    assert not re.search(r"@import|url\(", page)


@needs_chromium
def test_page_in_a_browser_shows_findings_pictures_and_all_values(tmp_path: Path) -> None:
    publish(tmp_path, RESULTS)
    with opened(tmp_path / "index.html") as shown:
        page = shown.page
        assert page.locator("#findings").inner_text() == "Use 2 threads & no <more>."
        widths = page.locator("img").evaluate_all("images => images.map(each => each.naturalWidth)")
        assert len(widths) == 2
        assert all(widths)
        table = page.locator("table.results").first
        assert table.locator("td.number").nth(1).get_attribute("title") == "1,000, 900, 1,100"
        assert page.locator("#config").inner_text() == RESULTS.config


@needs_chromium
def test_page_without_rows_in_a_browser(tmp_path: Path) -> None:
    publish(tmp_path, replace(RESULTS, rows=(), charts=(), findings=()))
    with opened(tmp_path / "index.html") as shown:
        assert "nothing was measured" in shown.page.locator("body").inner_text()
