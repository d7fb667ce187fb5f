"""The report page of a benchmark: one self-contained HTML file, and the folder of all result files."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ppcls.bench.results.charts import drawings, label_text, picture_name, to_png
from ppcls.bench.results.schema import ResultRow, Results, write_results
from ppcls.bench.results.tables import LEGEND, cell, headings, kinds_of_rows, number
from ppcls.files import atomic_write, write_text

PAGE = "index.html"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("ppcls.bench.results", "page"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("results.html.j2")


def publish(folder: Path, results: Results) -> list[Path]:
    """Creates a folder with the results as JSON and CSV, one PNG per chart, and the page.

    Returns:
        The pictures.
    """
    write_results(folder, results)
    charts = drawings(results)
    pictures = {chart.title: to_png(chart) for chart in charts}
    paths = [folder / picture_name(number, chart) for number, chart in enumerate(charts, start=1)]
    for path, picture in zip(paths, pictures.values(), strict=True):
        with atomic_write(path) as file:
            file.write(picture)
    write_text(folder / PAGE, render_page(results, pictures))
    return paths


def render_page(results: Results, pictures: Mapping[str, bytes]) -> str:
    """Returns the HTML of the page.

    Args:
        results: Results to show.
        pictures: PNG of each chart by its title.
    """
    page = _template().render(
        results=results,
        command=shlex.join(results.command),
        tables=[_table(rows) for rows in kinds_of_rows(results.rows)],
        legend=LEGEND,
        pictures={title: b64encode(picture).decode() for title, picture in pictures.items()},
        style=_asset("ppcls.report", "report.css") + _asset("ppcls.bench.results", "results.css"),
    )
    # File names may contain bytes that are not text; they must not break the page.
    return page.encode("utf-8", "replace").decode("utf-8")


def _asset(package: str, name: str) -> str:
    return files(package).joinpath("page", name).read_text(encoding="utf-8")


def _table(rows: list[ResultRow]) -> dict[str, Any]:
    heads = headings(rows)
    return {
        "heads": heads,
        "rows": [
            {
                "labels": [label_text(row.labels[name]) for name in heads.labels],
                "metrics": [_cell(row, name) for name, _ in heads.metrics],
                "note": row.note,
            }
            for row in rows
        ],
    }


def _cell(row: ResultRow, name: str) -> dict[str, str]:
    metric = row.metrics.get(name)
    if metric is None:
        return {"text": "", "all": "not measured"}
    return {"text": cell(metric), "all": ", ".join(map(number, metric.values))}
