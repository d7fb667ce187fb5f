"""The report page of a benchmark: one self-contained HTML file, and the folder of all result files."""

from __future__ import annotations

import shlex
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ppcls.bench.results.charts import Drawing, category_lines, drawings, label_text, picture_name, to_png
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
    pictures = []
    for index, drawing in enumerate(drawings(results), start=1):
        pictures.append(folder / picture_name(index, drawing))
        with atomic_write(pictures[-1]) as file:
            file.write(to_png(drawing))
    write_text(folder / PAGE, render_page(results))
    return pictures


def render_page(results: Results) -> str:
    """Returns the HTML of the page."""
    page = _template().render(
        results=results,
        command=shlex.join(results.command),
        tables=[_table(rows) for rows in kinds_of_rows(results.rows)],
        legend=LEGEND,
        data={"charts": [_chart(drawing) for drawing in drawings(results)]},
        style=_asset("ppcls.report", "report.css") + _asset("ppcls.bench.results", "results.css"),
        script=_asset("ppcls.bench.results", "results.js"),
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


def _cell(row: ResultRow, name: str) -> dict[str, Any]:
    metric = row.metrics.get(name)
    if metric is None:
        return {"text": "", "all": "not measured", "sort": ""}
    return {"text": cell(metric), "all": ", ".join(map(number, metric.values)), "sort": metric.median}


def _chart(drawing: Drawing) -> dict[str, Any]:
    return {
        "title": drawing.title,
        "x": drawing.x,
        "y": drawing.y,
        "log": drawing.log,
        "categories": category_lines(drawing),
        "series": [
            {
                "name": series.name,
                "colour": series.colour,
                "points": [
                    {
                        "x": point.x,
                        "label": point.label,
                        "median": point.metric.median,
                        "low": point.metric.low,
                        "high": point.metric.high,
                        "text": f"{cell(point.metric)} {point.metric.unit}".strip(),
                    }
                    for point in series.points
                ],
            }
            for series in drawing.series
        ],
    }
